"""Simulated ranks: a known cost model, the truth that the analysis is held against, and their records."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalescope.experiment.explanations import NO_COMM, PRELOADED, has_ablation, has_loader
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import OBSERVED, SUPPRESSED, RankPlacement
from scalescope.results.result import RankRecord

HOST = "fake"
_DEVICE_NAME = "fake processor"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedScript:
    """What a simulated training command does by itself, which its ranks then observe."""

    samples: int = 32  # of a rank and step, where the command is given no batch
    shares_samples: bool = False  # the ranks share them: strong scaling
    unit: str = "samples"
    wrapper: str = "ddp"  # on several ranks
    loader: bool = False
    loader_workers: int = 0
    counts_samples: bool = True  # False: the input of its model shows none

    def samples_of(self, trial: Trial) -> int:
        """Samples of one rank and step."""
        if trial.settings.get("global_batch_size") is not None:
            return int(trial.settings["global_batch_size"]) // trial.world_size
        asked = trial.settings.get("batch_size")
        samples = self.samples if asked is None else int(asked)
        return samples // trial.world_size if self.shares_samples else samples

    def counters(self, trial: Trial, steps: int) -> dict[str, float | int | str | None]:
        """What a rank counts and observes in so many measured steps."""
        counters: dict[str, float | int | str | None] = {
            "world_size": trial.world_size,
            "measured_steps": steps,
            f"{OBSERVED}unit": self.unit,
            f"{OBSERVED}samples_from": "first dimension of the input of Net",
            f"{OBSERVED}wrapper": self.wrapper if trial.world_size > 1 else "none",
            f"{OBSERVED}loader": int(self.loader),
            f"{OBSERVED}loader_workers": self.loader_workers,
            f"{OBSERVED}optimizers": "AdamW",
            f"{OBSERVED}events_per_step": 1,
            f"{OBSERVED}micro_batches": 1,
            f"{OBSERVED}step_from": "optimizer steps",
            f"{OBSERVED}skipped_steps": 0,
            f"{SUPPRESSED}wandb.log": 1,
            "parameters": 1_000_000,
            "convolutions": 0,
        }
        if self.counts_samples:
            counters["measured_samples"] = steps * self.samples_of(trial)
        return counters


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """What a step costs, in seconds, exposed communication by world size; and what a collective costs."""

    fixed_s: float = 0.010
    per_sample_s: float = 0.0002
    wrapper_s: float = 0.0
    exposed_comm_s: Mapping[int, float] = field(default_factory=dict)
    contention_s: float = 0.0  # of ranks on one host
    input_s: Mapping[int, float] = field(default_factory=dict)  # waiting for a loader
    late_s: Mapping[int, float] = field(default_factory=dict)  # by rank: what it takes longer than others
    launch_noise: float = 0.0
    step_noise: float = 0.0
    latency_s: float = 20e-6
    bytes_per_s: float = 1e9
    parameter_bytes: int = 4_000_000
    activation_bytes: int = 1_000_000  # of one sample
    temporary_bytes: int = 500_000
    device_bytes: int = 1 << 34
    script: SimulatedScript = SimulatedScript()  # for training commands
    # What settings do to the step time of every trial that has all of these (name, value) pairs.
    factors: Mapping[tuple[tuple[str, object], ...], float] = field(default_factory=dict)

    def step_time_s(self, trial: Trial) -> float:
        """The true mean step time of a trial."""
        samples = self.script.samples_of(trial) if trial.is_command else trial.rank_batch_size
        time_s = self.fixed_s + self.per_sample_s * samples
        if trial.is_wrapped:
            time_s += self.wrapper_s
        if not has_ablation(trial, NO_COMM):
            time_s += self.exposed_comm_s.get(trial.world_size, 0.0)
        if trial.world_size > 1:
            time_s += self.contention_s
        time_s += self.input_wait_s(trial)
        return time_s * math.prod(
            factor
            for pairs, factor in self.factors.items()
            if all(trial.settings.get(name) == value for name, value in pairs)
        )

    def input_wait_s(self, trial: Trial) -> float:
        """What a step waits for samples."""
        is_loaded = self.script.loader if trial.is_command else has_loader(trial)
        if is_loaded and not has_ablation(trial, PRELOADED):
            return self.input_s.get(trial.world_size, 0.0)
        return 0.0

    def peak_bytes(self, trial: Trial) -> int:
        """The true peak of a step: parameters, gradients, and what the batch takes."""
        return (
            2 * self.parameter_bytes + self.temporary_bytes + self.activation_bytes * trial.micro_batch_size
        )

    def room_bytes(self, trial: Trial) -> int:
        """What a rank may take before it is out of memory."""
        limit = trial.memory_limit
        return self.device_bytes if limit is None else min(self.device_bytes, limit)

    def collective_time_s(self, size_bytes: int) -> float:
        """The true time of every collective at a size."""
        return self.latency_s + size_bytes / self.bytes_per_s


def simulated_record(
    rank: int,
    samples: dict[str, list[float]],
    counters: Mapping[str, float | int | str | None],
    *,
    host: str = HOST,
    device: str = "cpu",
) -> RankRecord:
    """What a rank would have written."""
    return RankRecord(
        rank=rank,
        host=host,
        device=device,
        placement=f"[Rank {rank}] CUDA_VISIBLE_DEVICES=unset, LOCAL_RANK={rank}, "
        f"current_device={device}, name={_DEVICE_NAME}",
        samples=samples,
        counters=dict(counters),
    )


def simulated_placement(record: RankRecord) -> RankPlacement:
    """Where a simulated rank runs."""
    return RankPlacement(rank=record.rank, host=record.host, device_name=_DEVICE_NAME, line=record.placement)
