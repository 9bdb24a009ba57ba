"""A simulated job: its truth, its launches on a virtual clock, and the search of `tune` on them."""

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scalescope.analysis.tuning.conclusion import Conclusion, conclude
from scalescope.analysis.tuning.search import NextLaunch, Option, SearchPosition, TuningSearch
from scalescope.analysis.tuning.step_model import LeverEffect, StepModel, parts_of_step
from scalescope.analysis.tuning.tuned_launches import Combination, TunedLaunch, TunedLaunches, usual_deviation
from scalescope.catalog.cards import all_settings
from tuning.simulated_jobs import JOBS

_DEVICE_PARTS = ("products", "kernels", "optimizer")
_RECOMPILES = ("compile", "precision", "memory_format", "attention", "strategy")
_WARMUP_STEPS, _LEAST_STEPS = 3, 5


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A line of jobs.jsonl."""

    data: dict[str, Any]
    options: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        options = {f"{option['setting']} {option['value']}": option for option in self.data["options"]}
        object.__setattr__(self, "options", options)

    def parts(self, levers: Combination) -> dict[str, float]:
        """The true parts of a step with these levers, relative to the baseline's compute on its device."""
        parts = dict(self.data["parts"])
        for lever in levers:
            option = self.options[lever]
            factors = [option["factors"]]
            if "together" in option and levers & set(option["together"]["with"]):
                factors.append(option["together"]["factors"])
            for part, factor in itertools.chain.from_iterable(entry.items() for entry in factors):
                parts[part] *= factor
        return parts

    def step_s(self, levers: Combination) -> float:
        """The true step with these levers."""
        parts = self.parts(levers)
        device = sum(parts[part] for part in _DEVICE_PARTS)
        compute = max(device, parts["host"])
        waiting = max(0.0, parts["load"] - compute)
        exposed = max(0.0, parts["communication"] - parts["overlap"] * device)
        return float(self.data["step_s"] * (compute + waiting + exposed))

    def can_run(self, levers: Combination) -> bool:
        settings = Counter(self.options[lever]["setting"] for lever in levers)
        if max(settings.values(), default=0) > 1:
            return False
        return all(
            levers & set(self.options[lever]["needs"]) for lever in levers if "needs" in self.options[lever]
        )

    def fails(self, levers: Combination) -> bool:
        return any(self.options[lever].get("fails") for lever in levers)

    def gain(self, levers: Combination) -> float:
        """The true speedup."""
        return self.step_s(frozenset()) / self.step_s(levers)

    def best_gain(self) -> float:
        """The largest true speedup of any combination."""
        return max(self.gain(levers) for levers in self._combinations())

    def _combinations(self) -> Iterator[Combination]:
        by_setting: dict[str, list[str | None]] = {}
        for name, option in self.options.items():
            if any(factor < 1.0 for factor in self._all_factors(option)):
                by_setting.setdefault(option["setting"], [None]).append(name)
        for choice in itertools.product(*by_setting.values()):
            levers = frozenset(name for name in choice if name is not None)
            if self.can_run(levers) and not self.fails(levers):
                yield levers

    @staticmethod
    def _all_factors(option: dict[str, Any]) -> list[float]:
        return [*option["factors"].values(), *option.get("together", {}).get("factors", {}).values()]

    # Launches

    def program(self, levers: Combination) -> Combination | None:
        if not any(self.options[lever]["setting"] == "compile" for lever in levers):
            return None
        return frozenset(lever for lever in levers if self.options[lever]["setting"] in _RECOMPILES)

    def log_rate(self, levers: Combination, at_s: float, draw: random.Random) -> float:
        noise = self.data["noise"]
        deviation = noise["deviation"]
        if noise["kind"] == "heavy":
            chi = sum(draw.gauss(0.0, 1.0) ** 2 for _ in range(noise["freedom"]))
            error = deviation * draw.gauss(0.0, 1.0) / math.sqrt(chi / noise["freedom"])
        else:
            error = deviation * draw.gauss(0.0, 1.0)
        if noise["kind"] == "bimodal" and draw.random() < noise["share"]:
            error -= math.log1p(noise["slower"])
        error -= noise.get("drift_per_hour", 0.0) * at_s / 3600.0
        return error - math.log(self.step_s(levers))

    def duration_s(self, levers: Combination, window_s: float, programs: set[Combination]) -> float:
        step_s = self.step_s(levers)
        measuring_s = _WARMUP_STEPS * step_s + max(window_s, _LEAST_STEPS * step_s)
        program = self.program(levers)
        compiling_s = 0.0
        if program is not None:
            again = program in programs
            compiling_s = self.data["compile_again_s" if again else "compile_first_s"]
            programs.add(program)
        return float(self.data["start_s"] + measuring_s + compiling_s)


def load_jobs() -> list[SimulatedJob]:
    return [SimulatedJob(json.loads(line)) for line in JOBS.read_text().splitlines()]


def search_of(job: SimulatedJob, threshold: float = 0.03) -> TuningSearch:
    """The search as `tune` sets it up: expectations from the cards, facts from the baseline's launch."""
    options = [Option(name=name, setting=option["setting"]) for name, option in job.options.items()]
    return TuningSearch(
        options=options,
        model=StepModel(parts_of=lambda levers: _facts(job, levers), effects=_effects(job)),
        can_run=job.can_run,
        program=job.program,
        threshold=threshold,
    )


def _facts(job: SimulatedJob, levers: Combination) -> Any:
    """What a launch of a combination, and one without communication, show of the true parts."""
    parts = job.parts(levers)
    device = sum(parts[part] for part in _DEVICE_PARTS)
    compute = max(device, parts["host"])
    waiting = max(0.0, parts["load"] - compute)
    step = job.step_s(levers) / job.data["step_s"]
    return parts_of_step(
        input_share=waiting / step,
        communication_share=max(0.0, step - compute - waiting) / step,
        busy_share=device / step if job.data["device"] == "cuda" else None,
    )


def _effects(job: SimulatedJob) -> dict[str, LeverEffect]:
    settings = all_settings("train")
    effects = {}
    for name, option in job.options.items():
        levers = [setting.lever for setting in settings[option["setting"]] if setting.lever is not None]
        expected = levers[0].expected(option["value"], job.data["device"]) if levers else None
        if expected is None:
            continue
        company = expected.company
        effects[name] = LeverEffect(
            factors=expected.factors,
            company=frozenset()
            if company is None
            else frozenset(f"{company[0]} {value}" for value in company[1]),
            together=expected.together,
        )
    return effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search came to on a job."""

    conclusion: Conclusion
    launches: tuple[TunedLaunch, ...]
    unused_s: float
    affordable: bool  # whether an untried lever would still have fitted


def simulate(job: SimulatedJob, budget_s: float, seed: int) -> Outcome:
    """The search on the virtual clock of a budget."""
    draw = random.Random(f"{seed}/{job.data['id']}/{budget_s:g}")
    search = search_of(job)
    window_s = min(3.0, max(0.3, budget_s / 180.0))
    launches: list[TunedLaunch] = []
    programs: set[Combination] = set()
    usual = usual_deviation(job.data["device"])
    now_s = 2.0  # starting scalescope itself
    while True:
        step = search.next_step(TunedLaunches(launches, usual), budget_s - now_s)
        if step is None:
            break
        launch, now_s = _launched(job, step, now_s, budget_s, window_s, programs, draw)
        launches.append(launch)
        if now_s >= budget_s:
            break
    measured = TunedLaunches(launches, usual)
    return Outcome(
        conclusion=conclude(search, measured),
        launches=tuple(launches),
        unused_s=max(0.0, budget_s - now_s),
        affordable=_affordable(job, search, measured, budget_s - now_s),
    )


def _launched(
    job: SimulatedJob,
    step: NextLaunch,
    now_s: float,
    budget_s: float,
    window_s: float,
    programs: set[Combination],
    draw: random.Random,
) -> tuple[TunedLaunch, float]:
    duration_s = job.duration_s(step.levers, window_s, programs)
    limit_s = budget_s - now_s
    if step.at_most_s is not None:
        limit_s = min(limit_s, step.at_most_s)
    rate: float | None = None
    if duration_s <= limit_s and not job.fails(step.levers):
        rate = job.log_rate(step.levers, now_s, draw)
    duration_s = min(duration_s, limit_s)
    launch = TunedLaunch(
        levers=step.levers, log_rate=rate, duration_s=duration_s, stage=step.stage, base=step.base
    )
    return launch, now_s + duration_s


def _affordable(job: SimulatedJob, search: TuningSearch, measured: TunedLaunches, left_s: float) -> bool:
    """Whether a lever that was never launched, and promises something, would fit into what is left."""
    if not measured.combinations:
        return False
    position = SearchPosition(search=search, measured=measured, remaining_s=left_s)
    tried = {name for launch in measured.launches for name in launch.levers}
    untried = [
        search.with_option(position.best, option)
        for option in search.options
        if option.name not in tried | position.unpromising()
    ]
    return any(
        job.can_run(levers) and position.costs.of(levers, position.best) <= left_s for levers in untried
    )
