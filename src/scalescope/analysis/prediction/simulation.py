"""The simulated step of a strategy on N ranks, fitted to what several ranks showed."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.prediction.collective_times import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.pipelines import simulate_pipeline
from scalescope.analysis.prediction.profiles import MeasuredProfile, RankProfile
from scalescope.analysis.prediction.setup import Fitted, RankLayout, Setup, StepTimeline, setup_of
from scalescope.analysis.prediction.timelines import (
    HALVES,
    simulate_data_parallel,
    simulate_fsdp,
    simulate_zero1,
    slowdown,
)
from scalescope.errors import BadInput
from scalescope.experiment.explanations import at_per_rank_batch, single_rank_baseline, without_communication
from scalescope.experiment.trial import Trial
from scalescope.results.run import Run

# ---- Simulation: one training step on N ranks, from one rank's profile and times of collectives


Simulator: TypeAlias = Callable[[RankProfile, CollectiveTimes, Setup, Fitted], StepTimeline]

SIMULATORS: Mapping[str, Simulator] = {
    "single": simulate_data_parallel,  # one rank exchanges nothing
    "ddp": simulate_data_parallel,
    "zero1": simulate_zero1,
    "fsdp": simulate_fsdp,
    "pipeline": simulate_pipeline,
}

_MOST_PASSES = 64  # that are simulated; those after them take as long as the last of these
_PASSES_PER_STAGE = 4  # until the stages of a pipeline repeat what they do


def simulate(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted | None = None
) -> StepTimeline:
    """The step of the setup's strategy, with the error that the network's times bring; one rank has none."""
    line = simulate_once(profile, times, setup, fitted)
    if setup.world_size == 1:
        return line
    later_s = simulate_once(profile, _Slower(times), setup, fitted).step_s
    return dataclasses.replace(line, network_error=max(0.0, later_s / line.step_s - 1.0))


def simulate_once(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted | None = None
) -> StepTimeline:
    """The same without that error."""
    if setup.strategy not in SIMULATORS:
        known = ", ".join(SIMULATORS)
        raise BadInput(f"strategy {setup.strategy} cannot be predicted; supported: {known}")
    fitted = fitted or Fitted()
    passes = _passes(setup)
    issued_s = passes * profile.issue_s * slowdown(fitted, setup.world_size)
    if profile.issue_s:  # then contention was seen on the host, and nothing is known about that of GPUs
        fitted = dataclasses.replace(fitted, contention={})
    if setup.world_size == 1:
        setup = dataclasses.replace(setup, strategy="single", accumulation_steps=passes)
    most = max(_MOST_PASSES, _PASSES_PER_STAGE * setup.world_size if setup.strategy == "pipeline" else 0)
    simulator = SIMULATORS[setup.strategy]
    line = simulator(profile, times, _with_passes(setup, min(passes, most)), fitted)
    if passes > most:
        earlier = simulator(profile, times, _with_passes(setup, most // 2), fitted)
        line = _continued(line, earlier, (passes - most) / (most - most // 2))
    return _not_before_issued(line, issued_s)


def _passes(setup: Setup) -> int:
    """Forward and backward passes of a step."""
    return setup.micro_batches if setup.strategy == "pipeline" else setup.accumulation_steps


def _with_passes(setup: Setup, passes: int) -> Setup:
    if setup.strategy == "pipeline":
        return dataclasses.replace(setup, micro_batches=passes)
    return dataclasses.replace(setup, accumulation_steps=passes)


def _continued(line: StepTimeline, earlier: StepTimeline, times: float) -> StepTimeline:
    """The step with more passes: beyond `earlier` every pass takes the same time."""
    names = ("step_s", "exposed_s", "bubble_s", "straggling_s")
    values = {name: (getattr(line, name), getattr(earlier, name)) for name in names}
    longer = {name: now + times * (now - before) for name, (now, before) in values.items()}
    return dataclasses.replace(line, **longer)


def _not_before_issued(line: StepTimeline, issued_s: float) -> StepTimeline:
    """The step of GPUs whose host needs so long to issue it; what the host hides is not exposed."""
    if not issued_s:
        return line
    return dataclasses.replace(
        line,
        step_s=max(line.step_s, issued_s),
        exposed_s=min(line.exposed_s, max(0.0, line.step_s - issued_s)),
        host_s=issued_s if issued_s > line.step_s else 0.0,
    )


class _Slower:
    """Collectives that each take longer by their standard deviation: their errors have one cause."""

    def __init__(self, times: CollectiveTimes) -> None:
        self._times = times

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        time = self._times.time_of(collective, size_bytes, ranks, layout)
        return dataclasses.replace(time, time_s=time.time_s * (1.0 + time.error))


# ---- What measurements of several ranks say about contention and overlap, beyond one rank's profile


Ranges: TypeAlias = Mapping[str, tuple[float, float]]
ErrorOf: TypeAlias = Callable[[Fitted], float]

# By parameter of the model: the values that are tried, first coarsely and then around the best.
_ON_CORES = {
    "shared_latency": (0.0, 1.0),
    "compute_s_per_byte": (0.0, 8e-9),
    "busy_s_per_byte": (0.0, 8e-9),
    "busy_latency": (-1.0, 3.0),
    "fp16_s_per_byte": (0.0, 4e-8),
    "bf16_s_per_byte": (0.0, 4e-8),
    "hook_s": (0.0, 8e-3),
}
_ON_GPUS = {  # NCCL runs one exchange at a time: none shares another's latency
    "busy_s_per_byte": (0.0, 5e-10),
    "overlap_slowdown": (0.0, 1.0),
    "hook_s": (0.0, 2e-3),
}
_RANGES = {"nccl": _ON_GPUS}  # elsewhere ranks compute and exchange on the same cores
_OF_HOOKS = {"fp16_s_per_byte": ("fp16",), "bf16_s_per_byte": ("bf16",), "hook_s": HALVES}
_TRIES, _REFINEMENTS = 9, 4
_PENALTY = 0.001  # added to the error for a parameter at the end of its range: less is noise
_LEAST_GAIN = 0.003  # by which another parameter has to lower the mean error
_STEPS_PER_PARAMETER = 2  # with fewer measured steps, later parameters stay unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step on several ranks: measured, and what a simulation of it needs."""

    profile: RankProfile
    times: CollectiveTimes
    setup: Setup
    step_s: float
    silent_step_s: float | None = None  # the same ranks without communication


def fitted_of(run: Run, measured: MeasuredProfile, times: CollectiveTimes) -> Fitted:
    """From the configurations of the run that differ from the profile's in ranks and exchanges alone."""
    steps = []
    known = configurations(result for result in run.results if result.status == "ok")
    for item in known:
        if (
            item.trial.world_size > 1
            and not item.trial.is_ablation
            and _same_work(item.trial, measured.trial)
        ):
            silent = _silent(item.trial, known)
            steps.append(
                MeasuredStep(
                    profile=measured.profile,
                    times=times,
                    setup=setup_of(item.trial),
                    step_s=statistics.fmean(item.mean_steps_s),
                    silent_step_s=None if silent is None else statistics.fmean(silent.mean_steps_s),
                )
            )
    return fit(steps)


def fit(steps: Sequence[MeasuredStep]) -> Fitted:
    """Contention from launches without communication; then what brings simulated steps to the measured."""
    fitted = Fitted(contention=_contention(steps), from_launches=len(steps))
    exchanging = [step for step in steps if step.setup.world_size > 1]
    if not exchanging:
        return fitted
    ranges = _RANGES.get(exchanging[0].setup.backend, _ON_CORES)
    names = _parameters([step.setup.comm_hook for step in exchanging], list(ranges))
    return _selected(fitted, names, ranges, _error_on(exchanging, ranges))


def _selected(fitted: Fitted, names: Sequence[str], ranges: Ranges, error_of: ErrorOf) -> Fitted:
    """The parameter that helps most, then the next one beside it, until none helps enough."""
    chosen: list[str] = []
    error = error_of(fitted)
    while len(chosen) < len(names):
        tried = {name: _fitted(fitted, [name], ranges, error_of) for name in names if name not in chosen}
        best = min(tried, key=lambda name: error_of(tried[name]))
        changed = _fitted(tried[best], [*chosen, best], ranges, error_of)
        if error - error_of(changed) < _LEAST_GAIN:
            break
        chosen.append(best)
        fitted, error = changed, error_of(changed)
    return fitted


def _fitted(fitted: Fitted, names: Sequence[str], ranges: Ranges, error_of: ErrorOf) -> Fitted:
    """With the best values of these parameters, first coarsely and then around the best."""
    for refinement in range(_REFINEMENTS):
        for name in names:
            now = getattr(fitted, name)
            values = [*_around(now, ranges[name], refinement), *([] if now is None else [now])]
            fitted = _best(fitted, name, values, error_of)
    return fitted


def _parameters(hooks: Sequence[str], names: Sequence[str]) -> list[str]:
    """What this many steps with these hooks can say; the work of a hook first, which no other step has."""
    used = [name for name in names if set(_OF_HOOKS.get(name, ())) & set(hooks)]
    of_all = [name for name in names if name not in _OF_HOOKS]
    chosen = [*used, *of_all][: math.ceil(len(hooks) / _STEPS_PER_PARAMETER)]
    return [name for name in names if name in chosen]


def _around(now: float | None, whole: tuple[float, float], refinement: int) -> list[float]:
    """The values to try next; fewer of the range each time."""
    low, high = whole
    width = (high - low) / 2.0**refinement
    middle = (low + high) / 2.0 if now is None or refinement == 0 else now
    begin = min(max(low, middle - width / 2.0), high - width)
    return [begin + width * number / (_TRIES - 1) for number in range(_TRIES)]


def _best(fitted: Fitted, name: str, values: Sequence[float], error_of: ErrorOf) -> Fitted:
    """The fitted parameters with the best of several values of one of them."""
    tried = [dataclasses.replace(fitted, **{name: value}) for value in values]  # type: ignore[arg-type]
    return min(tried, key=error_of)


def _error_on(steps: Sequence[MeasuredStep], ranges: Ranges) -> ErrorOf:
    """The mean absolute error of predicted steps, as a ratio."""

    contentions = [contention_of(step) for step in steps]

    def error(fitted: Fitted) -> float:
        errors = []
        for step, contention in zip(steps, contentions, strict=True):
            known = fitted.contention if contention is None else {step.setup.world_size: contention}
            line = simulate_once(
                step.profile, step.times, step.setup, dataclasses.replace(fitted, contention=known)
            )
            errors.append(abs(math.log(line.step_s / step.step_s)))
        return statistics.fmean(errors) + _PENALTY * _size(fitted, ranges)

    return error


def _size(fitted: Fitted, ranges: Ranges) -> float:
    """How far the parameters are from having no effect, in widths of their ranges."""
    values = ((getattr(fitted, name) or 0.0, low, high) for name, (low, high) in ranges.items())
    return math.fsum(abs(value) / (high - low) for value, low, high in values)


def contention_of(step: MeasuredStep) -> float | None:
    """Compute on its ranks ÷ compute on one; None where communication was never left out."""
    if step.silent_step_s is None:
        return None
    alone = dataclasses.replace(step.setup, world_size=1)
    return step.silent_step_s / simulate_once(step.profile, step.times, alone).step_s


def _contention(steps: Sequence[MeasuredStep]) -> dict[int, float]:
    """The median over all that was measured on as many ranks."""
    ratios: dict[int, list[float]] = {}
    for step in steps:
        ratio = contention_of(step)
        if ratio is not None:
            ratios.setdefault(step.setup.world_size, []).append(ratio)
    return {ranks: statistics.median(values) for ranks, values in ratios.items()}


def _same_work(trial: Trial, alone: Trial) -> bool:
    """Whether each rank of a trial does what the profile's rank does."""
    return single_rank_baseline(at_per_rank_batch(trial)).trial_id == alone.trial_id


def _silent(trial: Trial, known: Sequence[Configuration]) -> Configuration | None:
    """The same ranks without communication."""
    wanted = without_communication(trial)
    return next(
        (item for item in known if wanted is not None and item.trial.trial_id == wanted.trial_id), None
    )
