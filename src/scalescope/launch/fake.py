"""Fake launcher: answers from a known cost model, so that the analysis can be held against the truth."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.measuring import Measuring
from scalescope.experiment.ablations import NO_COMM, PRELOADED, has_ablation, has_loader
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, Watcher, judge
from scalescope.results.result import RankRecord
from scalescope.results.run_folder import RunFolder

TWO_CORES = Machine(
    host="fake",
    system="Linux",
    architecture="none",
    cpu_model="fake processor",
    cores=2,
    memory_bytes=1 << 34,
    python_version="3.11.0",
    torch_version="2.13.0",
    cuda_version=None,
    nccl_version=None,
    driver_version=None,
    backends=("gloo",),
    gpus=(),
    gpu_problem=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """What a step costs, in seconds, exposed communication by world size; and what a collective costs."""

    fixed_s: float = 0.010
    per_sample_s: float = 0.0002
    wrapper_s: float = 0.0
    exposed_comm_s: Mapping[int, float] = field(default_factory=dict)
    contention_s: float = 0.0  # of ranks beside each other
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
    # What settings do to the step time of every trial that has all of these (name, value) pairs.
    factors: Mapping[tuple[tuple[str, object], ...], float] = field(default_factory=dict)

    def step_time_s(self, trial: Trial) -> float:
        """The true mean step time of a trial."""
        time_s = self.fixed_s + self.per_sample_s * trial.rank_batch_size
        if trial.is_wrapped:
            time_s += self.wrapper_s
        if not has_ablation(trial, NO_COMM):
            time_s += self.exposed_comm_s.get(trial.world_size, 0.0)
        if trial.world_size > 1:
            time_s += self.contention_s
        if has_loader(trial) and not has_ablation(trial, PRELOADED):
            time_s += self.input_s.get(trial.world_size, 0.0)
        return time_s * math.prod(
            factor
            for pairs, factor in self.factors.items()
            if all(trial.settings.get(name) == value for name, value in pairs)
        )

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


class FakeLauncher:
    """Makes up rank records from a cost model; `outcomes` replaces chosen ones, for instance by failures."""

    repeatable = True

    def __init__(
        self,
        model: CostModel,
        machine: Machine = TWO_CORES,
        outcomes: Callable[[Trial, int], Outcome | None] = lambda trial, launch: None,
    ) -> None:
        self._model = model
        self._machine = machine
        self._outcomes = outcomes
        self.launched: list[tuple[str, int]] = []

    def machine(self) -> Machine:
        return self._machine

    def nodes(self) -> dict[str, Machine]:
        return {self._machine.host: self._machine}

    def systems(self) -> dict[str, dict[str, Any]]:
        return {host: {} for host in self.nodes()}

    def check(self, trial: Trial) -> None:
        pass

    def launch(
        self, trial: Trial, launch: int, folder: RunFolder, limits: Measuring, watcher: Watcher
    ) -> Outcome:
        self.launched.append((trial.trial_id, launch))
        given = self._outcomes(trial, launch)
        if given is not None:
            return given
        benchmark = trial.benchmark
        if benchmark == "memory" and self._model.peak_bytes(trial) > self._model.room_bytes(trial):
            return Outcome(status="oom", reason="rank 0 failed at step 0: out of memory", rank=0, step=0)
        record = {"comm": self._communication, "memory": self._memory, "train": self._training}[benchmark]
        records = [record(trial, launch, rank) for rank in range(trial.world_size)]
        watcher.placed([record.placement for record in records], ["fake"] * len(records))
        watcher.advanced(1.0)
        return judge(trial, records)

    def _communication(self, trial: Trial, launch: int, rank: int) -> RankRecord:
        options = trial.options(Comm)
        samples: dict[str, list[float]] = {}
        for name in options.collectives():
            card = cards.card("collectives", name)
            for size in options.sizes() if card.has_data else (0,):
                if self._is_beyond(options, size):
                    break
                for in_place in card.in_place:
                    key = f"{name}/{'in' if in_place else 'out'}/{size}"
                    samples[key] = [self._model.collective_time_s(size)] * 5
        return self._record(rank, samples, {f"{key}/wrong": 0 for key in samples})

    def _is_beyond(self, options: Comm, size: int) -> bool:
        """Whether the size before took too long already."""
        smaller = size // options.step_factor
        limit = options.longest_exchange
        return limit is not None and self._model.collective_time_s(smaller) > limit

    def _memory(self, trial: Trial, launch: int, rank: int) -> RankRecord:
        model = self._model
        held = model.activation_bytes * trial.micro_batch_size
        sizes = {
            "parameters": model.parameter_bytes,
            "buffers": 0,
            "gradients": model.parameter_bytes,
            "optimizer": 2 * model.parameter_bytes if trial.optimizer == "adamw" else 0,
            "activations": held,
            "temporary": model.temporary_bytes,
            "inputs": 0,
        }
        counters: dict[str, float | int | str | None] = {"measured/peak": model.peak_bytes(trial)}
        if trial.purpose != "search":
            counters |= {f"measured/{name}": size for name, size in sizes.items() if name != "temporary"}
            counters |= {f"forecast/as_asked/{name}": size for name, size in sizes.items()}
            counters |= {"trace/temporary": model.temporary_bytes}
            counters["forecast/gathered"] = model.parameter_bytes // 4
        if trial.purpose == "measure":
            ways = {"now": sizes, "kept": sizes, "bf16": {**sizes, "activations": held // 2}}
            counters |= {f"forecast/{way}/{name}": size for way in ways for name, size in ways[way].items()}
            counters["forecast/other_ways_batch"] = trial.micro_batch_size
        if trial.device == "cuda":
            peak = model.peak_bytes(trial)
            counters |= {"measured/library": 0, "measured/reserved": peak}
            counters |= {"device/total": model.device_bytes, "device/free": model.device_bytes - peak}
        return self._record(rank, {}, counters)

    def _training(self, trial: Trial, launch: int, rank: int) -> RankRecord:
        launch_noise = random.Random(f"{trial.trial_id}/{launch}").gauss(0, self._model.launch_noise)
        steps = random.Random(f"{trial.trial_id}/{launch}/{rank}")
        count = self._steps(trial) - trial.warmup_steps
        late = self._model.late_s if trial.world_size > 1 else {}
        # Ranks that exchange gradients wait for the last; those that do not go their own way.
        behind_s = late.get(rank, 0.0) if has_ablation(trial, NO_COMM) else max(late.values(), default=0.0)
        mean_s = (self._model.step_time_s(trial) + behind_s) * math.exp(launch_noise)
        times = [mean_s * math.exp(steps.gauss(0, self._model.step_noise)) for _ in range(count)]
        counters: dict[str, float | int | str | None] = {
            "parameter_checksum": "0",
            "matmul_flops_per_s_before": 5e10,
            "matmul_flops_per_s_after": 5e10,
            "gradient_bytes": 4_000_000,
        }
        return self._record(rank, {"step_time_s": times, "loss": [1.0] * count}, counters)

    def _steps(self, trial: Trial) -> int:
        """How many steps a launch makes, warm-up included."""
        options = trial.options(Train)
        if options.window is None:
            return trial.steps or 100 * options.epochs
        in_window = math.ceil(options.window / self._model.step_time_s(trial))
        return options.warmup_steps + max(options.min_steps, in_window)

    def _record(
        self, rank: int, samples: dict[str, list[float]], counters: Mapping[str, float | int | str | None]
    ) -> RankRecord:
        return RankRecord(
            rank=rank,
            host="fake",
            device="cpu",
            placement=f"[Rank {rank}] CUDA_VISIBLE_DEVICES=unset, LOCAL_RANK={rank}, "
            "current_device=cpu, name=fake processor",
            samples=samples,
            counters=dict(counters),
        )

    def close(self) -> None:
        pass
