"""The scaling table, its verdict and what Amdahl's law makes of it."""

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling import (
    Reach,
    ScalingRow,
    next_world_sizes,
    scaling_rows,
    smallest_batch_reaching,
)
from scalescope.analysis.statistics import Estimate
from scalescope.report.numbers import (
    MISSING,
    counted,
    milliseconds,
    percent,
    percent_with_interval,
    significant,
)
from scalescope.report.section import Section, Table
from scalescope.report.training import warnings_of
from scalescope.results.run import Run

_COLUMNS = (
    "ranks",
    "batch",
    "step ms",
    "samples/s",
    "speedup",
    "efficiency [95 %]",
    "vs DDP×1",
    "exposed comm",
    "serial",
    "reading",
)


def scaling_sections(run: Run) -> tuple[Section, ...]:
    """Verdict first, then the table, then what limits more ranks and what to doubt."""
    rows = scaling_rows(configurations(run.results))
    if not rows:
        return ()
    return (
        Section(lines=(verdict(rows),)),
        table_section(rows),
        _amdahl_section(rows),
        *_doubt_section(rows),
    )


def next_after_scaling(run: Run) -> str | None:
    """What to do after `scale`: the first thing that would change the verdict."""
    rows = scaling_rows(configurations(run.results))
    scaled = [row for row in rows if not row.is_baseline]
    if not scaled:
        return "scalescope train measures one configuration; more ranks need more GPUs or --device cpu."
    if any(row.efficiency.low is None for row in scaled):
        return "--repeats 5 gives every figure an interval."
    if smallest_batch_reaching(rows, 0.8).batch is None:
        largest = max(row.batch for row in scaled)
        flag = "--batch-size" if scaled[0].trial.mode == "weak" else "--global-batch-size"
        return (
            "more compute for the same gradients hides more communication: "
            f"scalescope scale {flag} {largest * 2},{largest * 4}"
        )
    return "-v shows the interval of every figure and what makes it uncertain."


def table_section(rows: tuple[ScalingRow, ...]) -> Section:
    """One line for each world size and batch."""
    return Section(
        title=_title(rows),
        table=Table(
            columns=_COLUMNS,
            rows=tuple(_cells(row) for row in rows),
            left=frozenset(("reading",)),
            optional=("serial", "vs DDP×1", "samples/s"),
        ),
        details=_details(rows),
    )


def _title(rows: tuple[ScalingRow, ...]) -> str:
    first = rows[0]
    settings = first.trial.settings
    batch = "batch per rank" if first.trial.mode == "weak" else "global batch"
    base = "" if first.baseline_ranks == 1 else f" · relative to {first.baseline_ranks} ranks"
    marks = " · GPU shared by ranks: no scaling measurement" if settings["oversubscribe"] else ""
    launches = max(len(row.configuration.launches) for row in rows)
    return (
        f"{first.trial.mode} scaling · {settings['workload']} on {settings['device']} · {batch} · "
        f"{counted(launches, 'launch')} each{base}{marks}"
    )


def _cells(row: ScalingRow) -> tuple[str, ...]:
    one = row.configuration
    serial = row.serial_fraction
    return (
        f"{row.ranks}",
        f"{row.batch:,}",
        milliseconds(one.step_time_s.value),
        significant(one.samples_per_s.value, 4),
        f"{row.speedup.value:.2f}×",
        MISSING if row.is_baseline else percent_with_interval(row.efficiency),
        _against_wrapped(row),
        _exposed(row),
        _serial(serial),
        row.reading,
    )


def _serial(serial: float | None) -> str:
    if serial is None:
        return MISSING
    if serial < 0:
        return "none"
    return f"{serial:.2f}" if serial <= 1 else "> 1"


def _against_wrapped(row: ScalingRow) -> str:
    """The other baseline: DDP's own step on one rank, and the efficiency against it above."""
    if row.efficiency_of_wrapped is not None:
        return percent(row.efficiency_of_wrapped.value)
    if row.wrapped is not None and row.is_baseline:
        return f"{milliseconds(row.wrapped.step_time_s.value)} ms"
    return MISSING


def _exposed(row: ScalingRow) -> str:
    exposed = row.exposed_comm_s
    if exposed is None or row.exposed_fraction is None:
        return MISSING if row.ranks == 1 else "unknown"
    if exposed.value <= 0:
        return "~0 ms"
    mark = "" if _is_sure(exposed) else "~"
    return f"{mark}{milliseconds(exposed.value)} ms ({percent(row.exposed_fraction)})"


def _is_sure(estimate: Estimate) -> bool:
    return estimate.low is not None and estimate.low > 0


def verdict(rows: tuple[ScalingRow, ...]) -> str:
    """One sentence: what the largest world size delivers, and from which batch on it is worth it."""
    scaled = [row for row in rows if not row.is_baseline]
    if not scaled:
        return f"Only {counted(rows[0].ranks, 'rank')} measured: there is no scaling to see."
    most = max(row.ranks for row in scaled)
    at_most = [row for row in scaled if row.ranks == most]
    best = max(at_most, key=lambda row: row.efficiency.value)
    worst = min(at_most, key=lambda row: row.efficiency.value)
    ideal = f"of {most / best.baseline_ranks:g}"
    text = f"{most} ranks deliver {_delivery(worst)}"
    if worst is not best:
        text += f" and {_delivery(best)}"
    text += f" {ideal} ({best.trial.mode} scaling)"
    if best.trial.settings["oversubscribe"]:
        return f"{text}: the ranks share a GPU, so this is no scaling measurement."
    return f"{text}; {_reach_text(rows)}."


def _delivery(row: ScalingRow) -> str:
    return f"{row.speedup.value:.2f}× at batch {row.batch:,} ({row.reading}, {percent(row.efficiency.value)})"


def _reach_text(rows: tuple[ScalingRow, ...]) -> str:
    parts = [_reach_words(smallest_batch_reaching(rows, share)) for share in (0.8, 0.9)]
    if parts[0] == parts[1]:
        return f"80 % and 90 % are reached {parts[0]}"
    return f"80 % is reached {parts[0]}, 90 % {parts[1]}"


def _reach_words(reach: Reach) -> str:
    if reach.batch is None:
        return "by no batch measured"
    sure = "" if reach.certain else " (not certain)"
    return f"from batch {reach.batch:,}{sure}"


def _amdahl_section(rows: tuple[ScalingRow, ...]) -> Section:
    lines = []
    most = max(row.ranks for row in rows)
    for row in rows:
        if row.ranks != most or row.serial_fraction is None:
            continue
        serial = row.serial_fraction
        if not 0 <= serial <= 1:
            what = "more than linear" if serial < 0 else "slower than one rank"
            lines.append(f"Batch {row.batch:,}: {what}, which Amdahl's law does not cover.")
            continue
        limits = ", ".join(
            f"{row.allowed_speedup(ranks):.2f}× on {ranks}" for ranks in next_world_sizes(rows)
        )
        lines.append(f"Batch {row.batch:,}: Amdahl's serial fraction {serial:.2f} allows {limits}.")
    return Section(lines=tuple(lines))


def _details(rows: tuple[ScalingRow, ...]) -> tuple[str, ...]:
    """What -v adds: intervals of every figure, and how the simple reading differs."""
    lines = []
    for row in rows:
        step = row.configuration.step_time_s
        text = f"{_name(row)}: step {_ms(step)}, median {milliseconds(row.configuration.median_step_s)} ms"
        if row.exposed_comm_s is not None:
            text += f", exposed communication {_ms(row.exposed_comm_s)}"
        if row.efficiency_of_wrapped is not None:
            text += f", against DDP on one rank {percent_with_interval(row.efficiency_of_wrapped)}"
        lines.append(text)
    lines.append(
        "Exposed communication is the step minus the same step with a hook that sends nothing; "
        "T_multi − T_single would also hold the wrapper's cost and the ranks' contention."
    )
    return tuple(lines)


def _name(row: ScalingRow) -> str:
    return f"{counted(row.ranks, 'rank')}, batch {row.batch:,}"


def _ms(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{milliseconds(estimate.value)} ms (no interval)"
    return f"{milliseconds(estimate.value)} ms [{milliseconds(estimate.low)}, {milliseconds(estimate.high)}]"


def _doubt_section(rows: tuple[ScalingRow, ...]) -> tuple[Section, ...]:
    unstable = sum(bool(row.configuration.instabilities()) for row in rows)
    head = f"Unstable: {unstable} of {len(rows)} rows are noisier than a calm machine gives; -v says why."
    details = tuple(f"{_name(row)}: {warning}" for row in rows for warning in warnings_of(row.configuration))
    return (Section(lines=(head,) if unstable else (), details=details),)
