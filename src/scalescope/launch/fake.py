"""Fake launcher: answers from a known cost model, so that the analysis can be held against the truth."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.measuring import Measuring
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
    launch_noise: float = 0.0
    step_noise: float = 0.0
    latency_s: float = 20e-6
    bytes_per_s: float = 1e9

    def step_time_s(self, trial: Trial) -> float:
        """The true mean step time of a trial."""
        time_s = self.fixed_s + self.per_sample_s * trial.rank_batch_size
        if trial.settings["strategy"] != "single":
            time_s += self.wrapper_s
        if trial.settings["ablation"] != "noop_comm":
            time_s += self.exposed_comm_s.get(trial.world_size, 0.0)
        return time_s

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

    def check(self, trial: Trial) -> None:
        pass

    def launch(
        self, trial: Trial, launch: int, folder: RunFolder, limits: Measuring, watcher: Watcher
    ) -> Outcome:
        self.launched.append((trial.trial_id, launch))
        given = self._outcomes(trial, launch)
        if given is not None:
            return given
        record = self._communication if trial.settings["benchmark"] == "comm" else self._training
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
                for in_place in card.in_place:
                    key = f"{name}/{'in' if in_place else 'out'}/{size}"
                    samples[key] = [self._model.collective_time_s(size)] * 5
        return self._record(rank, samples, {f"{key}/wrong": 0 for key in samples})

    def _training(self, trial: Trial, launch: int, rank: int) -> RankRecord:
        launch_noise = random.Random(f"{trial.trial_id}/{launch}").gauss(0, self._model.launch_noise)
        steps = random.Random(f"{trial.trial_id}/{launch}/{rank}")
        settings = trial.settings
        count = settings["epochs"] * (settings["steps_per_epoch"] or 100) - settings["warmup_steps"]
        mean_s = self._model.step_time_s(trial) * math.exp(launch_noise)
        times = [mean_s * math.exp(steps.gauss(0, self._model.step_noise)) for _ in range(count)]
        counters: dict[str, float | int | str | None] = {
            "parameter_checksum": "0",
            "matmul_flops_per_s_before": 5e10,
            "matmul_flops_per_s_after": 5e10,
            "gradient_bytes": 4_000_000,
        }
        return self._record(rank, {"step_time_s": times, "loss": [1.0] * count}, counters)

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
