"""Trials and results made up for the analysis: every number in them is known."""

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.rounds import Cell
from scalescope.analysis.scaling.waterfall import TERMS, Term, Waterfall
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.tuning.launches import Combination, TunedLaunch, TunedLaunches
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import RankRecord, Result, Stage, StageKind
from tests.simulated.launcher import TWO_CORES


def make_trial(
    *, without_communication: bool = False, with_preloaded_input: bool = False, **settings: Any
) -> Trial:
    """A trial with every default resolved, as a request would give it."""
    asked = {"batch_size": 10, "steps_per_epoch": 13, "warmup_steps": 3, "threads_per_rank": 1, **settings}
    if "global_batch_size" in settings:
        del asked["batch_size"]
    flags = {name: (Given(str(value), f"--{name}"),) for name, value in asked.items()}
    experiment = build_experiment("scale", "train", {}, flags, {})
    (trial,) = expand(experiment, TWO_CORES).trials
    return trial.replace(
        without_communication=without_communication, with_preloaded_input=with_preloaded_input
    )


def make_result(
    trial: Trial,
    ranks: Sequence[Sequence[float]],
    *,
    launch: int = 0,
    started_at: str = "2026-01-15T10:30:00+00:00",
    calibration: Sequence[tuple[float | None, float | None]] | None = None,
) -> Result:
    """One launch from the step times of every rank; `calibration` is the matmul rate before and after."""
    rates = calibration or [(None, None)] * len(ranks)
    return Result(
        trial_id=trial.trial_id,
        launch=launch,
        order=launch,
        status="ok",
        settings=dict(trial.settings),
        started_at=started_at,
        duration_s=1.0,
        environment_id="made-up",
        ranks=[
            RankRecord(
                rank=rank,
                host="here",
                device="cpu",
                placement=f"[Rank {rank}]",
                samples={"step_time_s": list(times)},
                counters={"matmul_flops_per_s_before": before, "matmul_flops_per_s_after": after},
            )
            for rank, (times, (before, after)) in enumerate(zip(ranks, rates, strict=True))
        ],
    )


def make_configuration(trial: Trial, *step_times_s: float) -> Configuration:
    """One launch for each step time; all ten steps of all ranks take that long."""
    results = [
        make_result(trial, [[step] * 10] * trial.world_size, launch=launch)
        for launch, step in enumerate(step_times_s)
    ]
    (configuration,) = configurations(results)
    return configuration


# ---- Rows of collectives whose every number is known


def make_row(
    size_bytes: int,
    *times_s: float,
    collective: str = "all_reduce",
    dtype: str = "float32",
    ranks: int = 2,
    in_place: bool = True,
    transfers_s: tuple[float, ...] | None = None,
    last_rank: int | None = None,
    wrong: int = 0,
) -> CollectiveRow:
    return CollectiveRow(
        collective=collective,
        dtype=dtype,
        ranks=ranks,
        in_place=in_place,
        size_bytes=size_bytes,
        times_s=times_s,
        transfers_s=times_s if transfers_s is None else transfers_s,
        last_rank=last_rank,
        wrong=wrong,
    )


# ---- Launches of a search, made up: every speed in them is known


def combination(names: str) -> Combination:
    """`a+b` as a combination; empty: the settings as they are."""
    return frozenset(name for name in names.split("+") if name)


def launch(
    names: str,
    log_rate: float | None = 0.0,
    *,
    kind: StageKind = "explore",
    base: str = "",
    duration_s: float = 10.0,
    refused: bool = False,
    cut_short: bool = False,
    is_within: bool = False,
    load: OtherLoad | None = None,
) -> TunedLaunch:
    return TunedLaunch(
        levers=combination(names),
        log_rate=log_rate,
        duration_s=duration_s,
        stage=Stage("baseline" if not names and kind == "explore" else kind),
        base=combination(base),
        refused=refused,
        cut_short=cut_short,
        is_within=is_within,
        cell=None if load is None else Cell(configuration=names, round=None, load=load, threads=1),
    )


def launches(*made: TunedLaunch | Iterable[TunedLaunch], deviation: float = 0.01) -> TunedLaunches:
    flat: list[TunedLaunch] = []
    for member in made:
        flat += [member] if isinstance(member, TunedLaunch) else list(member)
    return TunedLaunches(flat, deviation)


# ---- Waterfalls of random terms: significant, not significant, without an interval, unknown, of either sign

_VALUES = st.floats(-3.0, 3.0).filter(lambda value: value == 0.0 or abs(value) > 1e-6)


def make_waterfall(ranks: int, delivered: float, terms: tuple[Term, ...]) -> Waterfall:
    """What is missing to N is left for the terms that are unknown."""
    step_s = 0.1
    known = sum(term.lost.value for term in terms if term.lost is not None)
    return Waterfall(
        trial=make_trial(strategy="ddp", world_size=ranks),
        step_s=step_s,
        ideal_s=delivered * step_s / ranks,
        delivered=delivered,
        terms=terms,
        unexplained_s=(ranks - delivered - known) * step_s / ranks,
        straggler=None,
        simple_comm_s=Estimate(0.0),
    )


def make_term(name: str, value: float | None, half: float | None, ranks: int) -> Term:
    """A loss with its interval of ± half; without one where `half` is None, unknown where `value` is."""
    if value is None:
        return Term(name=name, time_s=None, lost=None, reason="it was not measured")
    ends = (None, None) if half is None else (value - half, value + half)
    seconds = 0.1 / ranks
    low_s, high_s = (None if end is None else end * seconds for end in ends)
    return Term(name=name, time_s=Estimate(value * seconds, low_s, high_s), lost=Estimate(value, *ends))


@st.composite
def waterfalls(draw: st.DrawFn) -> Waterfall:
    ranks = draw(st.integers(2, 16))
    halves = st.none() | st.floats(0.0, 4.0)
    names = draw(st.lists(st.sampled_from(TERMS), unique=True, min_size=1).map(sorted))
    terms = tuple(make_term(name, draw(st.none() | _VALUES), draw(halves), ranks) for name in names)
    known = sum(term.lost.value for term in terms if term.lost is not None)
    complete = all(term.lost is not None for term in terms)
    delivered = ranks - known if complete else draw(st.floats(0.05, 1.5)) * ranks
    return make_waterfall(ranks, delivered, terms)
