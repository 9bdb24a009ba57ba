"""The search of `tune` on a simulated job: launches on a virtual clock, and what can be seen of them."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from scalescope.analysis.tuning.launches import Combination, TunedLaunch, TunedLaunches
from scalescope.analysis.tuning.search import (
    Conclusion,
    NextLaunch,
    Option,
    SearchPosition,
    TuningSearch,
    conclude,
)
from scalescope.analysis.tuning.step_model import LeverEffect, StepModel, StepParts, parts_of_step
from scalescope.catalog.cards import all_settings
from tuning.simulated_jobs import Job

_WRONG_CAUSE = 0.02  # of the step
_WARMUP_STEPS = 5
_PHASE_S = 90.0  # that a host stays slow, on average
_SWITCHABLE = ("precision bf16", "precision tf32", "compile default")
_PRODUCTS = ("product", "convolution", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search came to on a job."""

    conclusion: Conclusion
    launches: tuple[TunedLaunch, ...]
    unused_s: float
    misordered: int = 0  # launches of what promises a loss, while something that promises a gain would fit


def simulate(job: Job, budget_s: float, seed: int, noise: float = 1.0) -> Outcome:
    """The search on the virtual clock of a budget; `noise` multiplies how launches differ."""
    draw = random.Random(f"{seed}/{job.number}/{budget_s:g}")
    shown: dict[Combination, StepParts] = {}
    search = search_of(job, shown, budget_s)
    window_s = min(3.0, max(0.3, budget_s / 180.0))
    launches: list[TunedLaunch] = []
    misordered = 0
    compiled: set[Combination] = set()
    slow = _SlowHost(job, random.Random(f"host {seed}/{job.number}"))
    now_s = 2.0  # starting scalescope itself
    while True:
        step = search.next_step(TunedLaunches(launches), budget_s - now_s)
        if step is None:
            break
        misordered += _is_misordered(search, launches, step, budget_s - now_s)
        launch, now_s = _launched(job, step, now_s, budget_s, window_s, compiled, draw, slow, noise)
        launches.append(launch)
        if launch.log_rate is not None and step.levers not in shown:
            shown[step.levers] = _shown(job, step.levers, draw)
        if launch.log_rate is not None:
            limit_s = math.inf if step.at_most_s is None else step.at_most_s - launch.duration_s
            for levers in step.within:
                tried = _tried(job, levers, launch, compiled, draw, slow.factor(now_s), noise)
                if tried is None or tried.duration_s > limit_s:
                    break  # what fails, or outlasts its time, ends the tries
                launches.append(tried)
                now_s, limit_s = now_s + tried.duration_s, limit_s - tried.duration_s
        if now_s >= budget_s:
            break
    return Outcome(
        conclusion=conclude(search, TunedLaunches(launches)),
        launches=tuple(launches),
        unused_s=max(0.0, budget_s - now_s),
        misordered=misordered,
    )


def _is_misordered(
    search: TuningSearch, launches: list[TunedLaunch], step: NextLaunch, remaining_s: float
) -> bool:
    """Whether what is explored promises a loss, although something untried promises a gain and would fit. The
    bundle is launched first whatever it promises."""
    position = SearchPosition(search=search, measured=TunedLaunches(launches), remaining_s=remaining_s)
    if step.stage.kind != "explore" or step.levers == position.bundle:
        return False
    if position.promise(step.levers, step.base) >= 0.0:
        return False
    tried = {launch.levers for launch in launches}
    better = (search.with_option(position.best, option) for option in search.options)
    return any(
        levers not in tried
        and search.can_run(levers)
        and search.promise(levers, position.best) > 0.0
        and position.costs.of(levers, position.best) < remaining_s
        for levers in better
    )


def search_of(job: Job, shown: dict[Combination, StepParts], budget_s: float) -> TuningSearch:
    """The search as `tune` sets it up: expectations from the cards, facts from launches."""
    options = [
        Option(
            name=change.name,
            setting=change.setting,
            in_bundle=change.in_bundle,
            needs_promise=change.setting == "memory_format",
            sets_processes=change.setting == "num_workers",
            compiles=change.compiles,
            switchable=change.name in _SWITCHABLE,
        )
        for change in job.changes
    ]
    return TuningSearch(
        options=options,
        model=StepModel(parts_of=shown.get, effects=_effects(job), launched=shown.keys()),
        can_run=job.can_run,
        program=lambda levers: _program(job, levers),
        budget_s=budget_s,
    )


def best_gain(job: Job) -> float:
    """The largest true speedup of any set."""
    return max(gain(job, levers) for levers in _sets(job))


def gain(job: Job, levers: Combination) -> float:
    """The true speedup, averaged over the host's moods."""
    return _true_step_s(job, frozenset()) / _true_step_s(job, levers)


def _true_step_s(job: Job, levers: Combination) -> float:
    quick, slow = job.played(levers).step_s, job.played(levers, job.slow_host).step_s
    return (1.0 - job.slow_share) * quick + job.slow_share * slow


def _sets(job: Job) -> Iterator[Combination]:
    by_setting: dict[str, list[str | None]] = {}
    for change in job.changes:
        by_setting.setdefault(change.setting, [None]).append(change.name)
    for choice in itertools.product(*by_setting.values()):
        levers = frozenset(name for name in choice if name is not None)
        if job.can_run(levers) and not job.fails(levers):
            yield levers


class _SlowHost:
    """Whether others use the host: for minutes at a time."""

    def __init__(self, job: Job, draw: random.Random) -> None:
        self._job, self._draw = job, draw
        self._until, self._is_slow = 0.0, draw.random() < job.slow_share

    def factor(self, at_s: float) -> float:
        while at_s >= self._until:
            share = self._job.slow_share
            self._is_slow = self._draw.random() < share
            self._until += self._draw.expovariate(1.0 / _PHASE_S)
        return self._job.slow_host if self._is_slow else 1.0


def _launched(
    job: Job,
    step: NextLaunch,
    now_s: float,
    budget_s: float,
    window_s: float,
    compiled: set[Combination],
    draw: random.Random,
    slow: _SlowHost,
    noise: float,
) -> tuple[TunedLaunch, float]:
    played = job.played(step.levers, slow.factor(now_s))
    program = _program(job, step.levers)
    compiling_s = 0.0
    if program is not None:
        compiling_s = job.compile_again_s if program in compiled else job.compile_s
        compiled.add(program)
    restart_s = job.with_levers(step.levers).restart_s
    duration_s = job.start_s + compiling_s + restart_s + _WARMUP_STEPS * played.step_s
    duration_s += max(window_s, 5 * played.step_s)
    limit_s = min(budget_s - now_s, math.inf if step.at_most_s is None else step.at_most_s)
    rate: float | None = None
    restarted = False
    if duration_s <= limit_s and not job.fails(step.levers):
        rate = -math.log(played.step_s) + noise * job.deviation * draw.gauss(0.0, 1.0)
        if draw.random() < 0.05:  # an epoch begins inside the window
            rate -= math.log1p(min(0.5, restart_s / window_s))
            restarted = restart_s > 0.01 * window_s
    duration_s = min(duration_s, limit_s)
    launch = TunedLaunch(
        levers=step.levers,
        log_rate=rate,
        duration_s=duration_s,
        stage=step.stage,
        base=step.base,
        cut_short=rate is None and duration_s == limit_s,
        restarted=restarted,
    )
    return launch, now_s + duration_s


def _tried(
    job: Job,
    levers: Combination,
    launch: TunedLaunch,
    compiled: set[Combination],
    draw: random.Random,
    slow: float,
    noise: float,
) -> TunedLaunch | None:
    """Other levers in the start of a launch, in blocks that alternate with its own; None where they fail."""
    if job.fails(levers) or launch.log_rate is None:
        return None
    program = _program(job, levers)
    duration_s = draw.uniform(1.0, 6.0)
    if program is not None:
        duration_s += job.compile_again_s if program in compiled else job.compile_s
        compiled.add(program)
    ratio = job.played(launch.levers, slow).step_s / job.played(levers, slow).step_s
    error = 0.3 * noise * job.deviation * draw.gauss(0.0, 1.0)  # one process differs less from itself
    return TunedLaunch(
        levers=levers,
        log_rate=launch.log_rate + math.log(ratio) + error,
        duration_s=duration_s,
        stage=launch.stage,
        base=launch.levers,
        is_within=True,
    )


def _program(job: Job, levers: Combination) -> Combination | None:
    if not job.compiles(levers):
        return None
    return frozenset(n for n in levers if job.of(n).setting in ("compile", "precision", "memory_format"))


def _shown(job: Job, levers: Combination, draw: random.Random) -> StepParts:
    """What a launch shows of its step, some of it put down to the wrong cause."""
    played = job.played(levers)
    step_s = played.step_s
    input_share, send_share = played.input_s / step_s, played.send_s / step_s
    wrong = draw.uniform(0.0, _WRONG_CAUSE)
    input_share = min(1.0, max(0.0, input_share + draw.choice((-wrong, wrong))))
    products = sum(played.by_kind_s.get(kind, 0.0) for kind in _PRODUCTS)
    return parts_of_step(
        input_share=input_share,
        communication_share=send_share,
        busy_share=None if job.device == "cpu" else min(1.0, played.busy_s / step_s),
        products_share=products / played.busy_s,
        convolution_share=played.by_kind_s.get("convolution", 0.0) / max(products, 1e-12),
        prepare_share=job.with_levers(levers).prepare_s / step_s,
        processes=job.with_levers(levers).processes,
    )


def _effects(job: Job) -> dict[str, LeverEffect]:
    """What the cards expect."""
    settings = all_settings("train")
    effects = {}
    for change in job.changes:
        levers = [setting.lever for setting in settings.get(change.setting, ()) if setting.lever is not None]
        text = change.name.partition(" ")[2]
        values = {str(value): value for lever in levers for value in lever.tries_on(job.device)}
        if change.setting == "num_workers":
            effects[change.name] = LeverEffect(processes=int(text))
            continue
        expected = levers[0].expected(values.get(text, text), job.device) if levers else None
        if expected is None:
            continue
        company = expected.company
        effects[change.name] = LeverEffect(
            factors=expected.factors,
            company=frozenset()
            if company is None
            else frozenset(f"{company[0]} {value}" for value in company[1]),
            together=expected.together,
        )
    return effects
