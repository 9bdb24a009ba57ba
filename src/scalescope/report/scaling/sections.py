"""The scaling table, its verdict, and what is predicted for more ranks."""

from collections.abc import Sequence

from scalescope.analysis.commands import batch_text, can_set_batch, counts_tokens
from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import (
    OTHER_LOAD,
    Reach,
    ScalingRow,
    not_compared,
    scaling_rows,
    smallest_batch_reaching,
)
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.verdicts import LAUNCHES_FOR_A_CLAIM
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.report.caveats import context, warnings_of
from scalescope.report.commands import NOT_COMPARED, job_name, script_sections, units_of
from scalescope.report.findings import command_of, continuing, findings_section
from scalescope.report.machine import threads_differ, threads_text
from scalescope.report.more_ranks import on_more_ranks
from scalescope.report.numbers import (
    MISSING,
    counted,
    in_ms,
    is_useful,
    milliseconds,
    percent,
    percent_with_interval,
    significant,
)
from scalescope.report.prediction.sections import larger_section
from scalescope.report.scaling.waterfall import waterfall_sections
from scalescope.report.section import Section, ShownCommand, Table
from scalescope.report.trials import side_by_side
from scalescope.report.varied import changed_settings, shown_value, title_of, varied_settings
from scalescope.results.run import Run
from scalescope.results.run_commands import PROGRAM, command_on
from scalescope.results.run_record import resume_argv


def scaling_sections(run: Run | AnalyzedRun) -> tuple[Section, ...]:
    """Verdict first, then the table, then what limits more ranks and what is uncertain."""
    analyzed = analyzed_run(run)
    rows = analyzed.rows
    if not rows:
        return _without_rows(analyzed)
    return (
        Section(lines=(verdict(rows), *_unknown_ratios(analyzed))),
        table_section(rows),
        *waterfall_sections(rows, analyzed.steps),
        *larger_section(analyzed.predicted),
        *script_sections(analyzed.run),
        *findings_section(analyzed.diagnosis),
        *_noise_section(rows),
    )


def _unknown_ratios(analyzed: AnalyzedRun) -> list[str]:
    """World sizes without a verdict, because the other load was different during their launches."""
    return [
        f"{counted(member.trial.world_size, 'rank')} at {batch_text(member.trial)}: the speedup is unknown, "
        "because in every round the launches to compare ran under different other load."
        for reason in not_compared(analyzed.measured)
        if reason.reason == OTHER_LOAD
        for member in reason.members
    ]


def _without_rows(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """What there is to say where world sizes cannot be compared."""
    measured = tuple(member for member in analyzed.measured if not member.trial.is_ablation)
    if not measured:
        return ()
    return (
        Section(lines=(NOT_COMPARED,)),
        side_by_side(measured),
        *script_sections(analyzed.run),
        *findings_section(analyzed.diagnosis),
    )


def scaling_so_far(run: Run) -> str | None:
    """The verdict in the middle of a run, with its number of launches; None while nothing can be compared."""
    rows = scaling_rows(configurations(run.results))
    if all(row.is_baseline for row in rows):
        return None
    launches = min(len(row.configuration.launches) for row in rows)
    return verdict(rows, f" ({counted(launches, 'launch')} each)")


_SERIAL = "serial fraction"
_COMM_SHARE = "comm share"
_COMM_MS = "comm (ms)"
_INTERVAL = "95 % interval"
_UNSURE = "~"
_UNSURE_NOTE = "~ marks figures that need more launches (--repeats) to be sure; -v shows their intervals."
_SHORT_VERDICTS = {"negative scaling": "negative"}  # in the table; the speedup stands beside it
_IN_TITLE = ("workload", "batch_size", "global_batch_size", "link", "split_gpu", "stand_in", "oversubscribe")
_DOUBTFUL = 0.5  # width of an interval as a share of its value


def next_after_scaling(analyzed: AnalyzedRun) -> ShownCommand | None:
    """What to do after `scale`: the first thing that would change the verdict."""
    run, rows = analyzed.run, analyzed.rows
    scaled = [row for row in rows if not row.is_baseline]
    if not rows and analyzed.measured:
        return ShownCommand(label="give the samples per rank, per step, with --samples-per-step")
    if not rows:
        return continuing(run)
    if not scaled and any(result.status != "ok" and result.trial.world_size > 1 for result in run.results):
        return continuing(run)
    if not scaled:
        return on_more_ranks(run, rows[0].trial, run.record.verb, "measure more world sizes to compare with")
    if any(row.efficiency.low is None for row in scaled):
        return _with_more_launches(run)
    if smallest_batch_reaching(rows, 0.8).batch is None:
        findings = analyzed.diagnosis.findings
        costly = [finding for finding in findings if finding.share > 0.0 and finding.advice]
        if costly:
            return command_of(costly[0].advice[0])
    if smallest_batch_reaching(rows, 0.8).batch is None and can_set_batch(scaled[0].trial):
        largest = max(row.batch for row in scaled)
        name = "batch_size" if scaled[0].trial.mode == "weak" else "global_batch_size"
        changes = {name: (largest * 2, largest * 4)}
        argv = command_on(run.path, run.record.verb, changes, run.record.flags)
        return ShownCommand(label="a larger batch hides more of the exchange", argv=argv, changes_job=True)
    return ShownCommand(
        label="a page with every figure and its interval", argv=(PROGRAM, "report", str(run.path.resolve()))
    )


def _with_more_launches(run: Run) -> ShownCommand:
    if not run.record.repeatable:
        return ShownCommand(
            label="confidence intervals need several launches: see --only-launch in --help-all"
        )
    return ShownCommand(
        label="more launches give confidence intervals",
        argv=resume_argv(run.path.resolve(), repeats=LAUNCHES_FOR_A_CLAIM),
    )


def table_section(rows: tuple[ScalingRow, ...]) -> Section:
    """One line for each world size and batch."""
    varied = varied_settings([row.trial for row in rows])
    wrapped = _wrapped_heading(rows)
    units = units_of(row.configuration for row in rows)
    cells = [_cells(row, varied, wrapped, units) for row in rows]
    expert = ("mode", _SERIAL, wrapped, _COMM_MS, _INTERVAL)  # also in the title, -v and results.json
    return Section(
        title=_title(rows),
        table=Table(
            columns=tuple(cells[0]),
            rows=tuple(tuple(row.values()) for row in cells),
            left=frozenset(("mode", "verdict")),
            optional=(*expert, f"{units}/s"),
            expert=frozenset(expert),
        ),
        lines=(
            *threads_differ(row.configuration for row in rows),
            *((_UNSURE_NOTE,) if any(_UNSURE in cell for row in cells for cell in row.values()) else ()),
        ),
        details=_details(rows),
    )


def _title(rows: tuple[ScalingRow, ...]) -> str:
    first = max(rows, key=lambda row: row.ranks)  # one rank is the same in both modes
    tokens = "tokens" if counts_tokens(first.trial) else "batch"
    batch = f"{tokens} per rank" if first.trial.mode == "weak" else f"global {tokens}"
    bases = {row.baseline_ranks for row in rows}
    base = "" if bases == {1} else f" · relative to {counted(first.baseline_ranks, 'rank')}"
    if len(bases) > 1:
        base = " · each batch relative to its smallest world size"
    shared = any(row.trial.oversubscribe for row in rows)
    marks = " · ranks share a GPU: not a scaling measurement" if shared else ""
    made = "".join(f" · {surrounding}" for surrounding in context(first.trial))
    threads = threads_text(row.configuration for row in rows)
    counts = sorted({len(row.configuration.launches) for row in rows})
    launches = f"{counts[0]} to " * (len(counts) > 1) + counted(counts[-1], "launch")
    return (
        f"{first.trial.mode} scaling · {job_name(first.trial)} on {first.trial.device} · {batch} · "
        f"{launches} each{f' · {threads}' if threads else ''}{_changes(rows)}{base}{made}{marks}"
    )


def _changes(rows: tuple[ScalingRow, ...]) -> str:
    """The settings of the job that differ from the defaults and are neither in the title nor in a column."""
    trial = max(rows, key=lambda row: row.ranks).trial
    shown = (*_IN_TITLE, *varied_settings([row.trial for row in rows]))
    words = [f"{name} {shown_value(trial, name)}" for name in changed_settings(trial) if name not in shown]
    return f" · {', '.join(words)}" if words else ""


def _cells(row: ScalingRow, varied: tuple[str, ...], wrapped: str, units: str) -> dict[str, str]:
    configuration = row.configuration
    return {
        "ranks": f"{row.ranks} (stand-in)" if row.trial.stand_in else f"{row.ranks}",
        "batch": f"{row.batch:,}",
        **{name: shown_value(row.trial, name) for name in varied},
        "step (ms)": milliseconds(configuration.step_time_s.value),
        f"{units}/s": significant(configuration.speed.value, 4),
        "speedup": f"{row.speedup.value:.2f}×",
        "efficiency": _efficiency(row),
        _INTERVAL: _interval(row),
        **({wrapped: _against_wrapped(row)} if wrapped else {}),
        _COMM_SHARE: _communication_share(row),
        _COMM_MS: _communication_ms(row),
        _SERIAL: _serial(row.serial_fraction),
        "mode": row.trial.mode,
        "verdict": _SHORT_VERDICTS.get(row.reading, row.reading),
    }


def _wrapped_heading(rows: tuple[ScalingRow, ...]) -> str:
    """The other baseline is the strategy on one rank, which is not always DDP; commands have none."""
    if all(row.trial.is_command for row in rows):
        return ""
    strategies = {row.trial.strategy for row in rows if row.trial.is_wrapped}
    return "vs 1-rank DDP" if strategies <= {"ddp"} else "vs 1-rank wrapper"


def _serial(serial: float | None) -> str:
    if serial is None:
        return MISSING
    if serial < 0:
        return "none"
    return f"{serial:.2f}" if serial <= 1 else "> 1"


def _against_wrapped(row: ScalingRow) -> str:
    """The efficiency against the other baseline: the wrapper on one rank."""
    return MISSING if row.efficiency_of_wrapped is None else percent(row.efficiency_of_wrapped.value)


def _communication_share(row: ScalingRow) -> str:
    """The share of a step that communication adds."""
    added = row.communication_s
    if added is None or row.communication_fraction is None:
        return MISSING if row.ranks == 1 else "unknown"
    if added.value <= 0:
        return f"{_UNSURE}0 %"
    return f"{'' if _is_sure(added) else _UNSURE}{percent(row.communication_fraction)}"


def _communication_ms(row: ScalingRow) -> str:
    if row.communication_s is None:
        return MISSING
    return milliseconds(max(0.0, row.communication_s.value))


def _efficiency(row: ScalingRow) -> str:
    if row.is_baseline:
        return MISSING
    return f"{_UNSURE if is_doubtful(row) else ''}{percent(row.efficiency.value)}"


def _interval(row: ScalingRow) -> str:
    low, high = row.efficiency.low, row.efficiency.high
    if row.is_baseline or low is None or high is None or not is_useful(row.efficiency):
        return MISSING
    return f"{100.0 * low:.0f} to {percent(high)}"


def _is_sure(estimate: Estimate) -> bool:
    return estimate.low is not None and estimate.low > 0


def verdict(rows: tuple[ScalingRow, ...], basis: str = "") -> str:
    """One sentence: what the largest world size delivers, and from which batch on it is worth it.

    `basis` ends it: how much was measured so far.
    """
    scaled = [row for row in rows if not row.is_baseline]
    if not scaled:
        worlds = sorted({row.ranks for row in rows})
        if len(worlds) > 1:
            return "Nothing to compare yet: no batch was measured on two world sizes."
        return f"Measured on {counted(worlds[0], 'rank')} only, so there is no scaling to report."
    most = max(row.ranks for row in scaled)
    base = min(row.baseline_ranks for row in scaled if row.ranks == most)
    at_most = [row for row in scaled if row.ranks == most and row.baseline_ranks == base]
    best = max(at_most, key=lambda row: row.efficiency.value)
    worst = min(at_most, key=lambda row: row.efficiency.value)
    varied = varied_settings([row.trial for row in rows])
    text = f"{most} ranks deliver {_delivery(worst, varied)}"
    if worst is not best:
        text += f" and {_delivery(best, varied)}"
    text += f" of an ideal {most / base:g}× ({best.trial.mode} scaling)"
    if best.trial.oversubscribe:
        return f"{text}. The ranks share a GPU, so this is not a scaling measurement{basis}."
    doubt = _doubt((worst, best))
    is_given = can_set_batch(best.trial)
    if varied or not is_given:  # several jobs in one table: the smallest batch of which? Or there is no other
        return f"{text}{doubt}{basis}."
    return f"{text}; {_reach_text(rows)}{doubt}{basis}."


def _doubt(rows: Sequence[ScalingRow]) -> str:
    """Why the sentence about these rows is uncertain; empty where it is not."""
    if any(row.configuration.is_disturbed for row in rows):
        return ", on a busy machine"
    return "; uncertain, because launches differ too much" if any(map(is_doubtful, rows)) else ""


def is_doubtful(row: ScalingRow) -> bool:
    """Whether the interval is so wide that another run may rate it differently."""
    share = row.efficiency
    if share.low is None or share.high is None:
        return False
    return share.high - share.low > _DOUBTFUL * share.value


def _delivery(row: ScalingRow, varied: tuple[str, ...]) -> str:
    job = "".join(f", {name} {shown_value(row.trial, name)}" for name in varied)
    reading = f"{row.reading}, {percent(row.efficiency.value)}"
    return f"{row.speedup.value:.2f}× at {batch_text(row.trial)}{job} ({reading})"


def _reach_text(rows: tuple[ScalingRow, ...]) -> str:
    good, excellent = (smallest_batch_reaching(rows, share) for share in (0.8, 0.9))
    if good.batch is None and excellent.batch is None:
        return "80 % and 90 % efficiency were not reached"
    if (good.batch, good.certain) == (excellent.batch, excellent.certain):
        return f"80 % and 90 % efficiency {_from_batch(good)}"
    ninety = "not reached" if excellent.batch is None else _from_batch(excellent)
    eighty = "not reached" if good.batch is None else _from_batch(good)
    return f"80 % efficiency {eighty}, 90 % {ninety}"


def _from_batch(reach: Reach) -> str:
    return f"from batch {reach.batch:,} on{'' if reach.certain else ' (not certain)'}"


def _details(rows: tuple[ScalingRow, ...]) -> tuple[str, ...]:
    """What -v adds: intervals of every figure, and how the simple reading differs."""
    lines = []
    for row in rows:
        step = row.configuration.step_time_s
        text = f"{_name(row)}: step {_ms(step)}, median {in_ms(row.configuration.median_step_s)}"
        if row.wrapped is not None and row.is_baseline:
            text += f", {in_ms(row.wrapped.step_time_s.value)} with {_wrapper_of(row)}"
        if row.communication_s is not None:
            text += f", communication {_ms(row.communication_s)}"
        if row.efficiency_of_wrapped is not None:
            text += (
                f", efficiency against {_wrapper(row)} on one rank "
                f"{percent_with_interval(row.efficiency_of_wrapped)}"
            )
        if row.trial.mode == "weak" and row.amdahl_fraction is not None:
            text += f", serial fraction by Amdahl's law (fixed work) {_serial(row.amdahl_fraction)}"
        lines.append(text)
    lines.append(
        "Communication is the step time minus the mean rank's step time with communication disabled and "
        "minus waiting for other ranks. T_multi − T_single also contains wrapper overhead, contention, "
        "stragglers and random skew."
    )
    return tuple(lines)


def _wrapper(row: ScalingRow) -> str:
    return title_of(row.trial.strategy)


def _wrapper_of(row: ScalingRow) -> str:
    """The strategy whose step on one rank is the other baseline."""
    assert row.wrapped is not None
    return title_of(row.wrapped.trial.strategy)


def _name(row: ScalingRow) -> str:
    return f"{counted(row.ranks, 'rank')}, {batch_text(row.trial)}"


def _ms(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{in_ms(estimate.value)} (no interval)"
    return f"{in_ms(estimate.value)} [{milliseconds(estimate.low)}, {milliseconds(estimate.high)}]"


def _noise_section(rows: tuple[ScalingRow, ...]) -> tuple[Section, ...]:
    unstable = sum(bool(row.configuration.instabilities()) for row in rows)
    head = (
        f"{unstable} of {counted(len(rows), 'row')} {'is' if unstable == 1 else 'are'} noisy "
        "(launches differ, or the speed changed during a launch); -v shows the causes."
    )
    details = tuple(f"{_name(row)}: {warning}" for row in rows for warning in warnings_of(row.configuration))
    return (Section(lines=(head,) if unstable else (), details=details),)
