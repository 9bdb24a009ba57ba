"""The scaling table, its verdict and what Amdahl's law makes of it."""

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import (
    Reach,
    ScalingRow,
    next_world_sizes,
    scaling_rows,
    smallest_batch_reaching,
)
from scalescope.analysis.statistics import Estimate
from scalescope.diagnose.diagnosis import diagnose
from scalescope.report.findings import findings_section
from scalescope.report.numbers import (
    MISSING,
    counted,
    milliseconds,
    percent,
    percent_with_interval,
    significant,
)
from scalescope.report.scaling.waterfall import waterfall_sections
from scalescope.report.section import Section, Table
from scalescope.report.training.sections import context, warnings_of
from scalescope.report.varied import shown_value, varied_settings
from scalescope.results.run import Run


def scaling_sections(run: Run) -> tuple[Section, ...]:
    """Verdict first, then the table, then what limits more ranks and what to doubt."""
    rows = scaling_rows(configurations(run.results))
    if not rows:
        return (Section(lines=("Nothing was measured that could be shown.",)),)
    return (
        Section(lines=(verdict(rows),)),
        table_section(rows),
        *waterfall_sections(rows),
        *findings_section(diagnose(run)),
        *_doubt_section(rows),
    )


def scaling_so_far(run: Run) -> str | None:
    """The verdict in the middle of a run, with how much it stands on; None while nothing can be compared."""
    rows = scaling_rows(configurations(run.results))
    if all(row.is_baseline for row in rows):
        return None
    launches = min(len(row.configuration.launches) for row in rows)
    return f"{verdict(rows).removesuffix('.')} ({counted(launches, 'launch')} each)."


_DOUBTFUL = 0.5  # width of an interval as a share of its value


def next_after_scaling(run: Run) -> str | None:
    """What to do after `scale`: the first thing that would change the verdict."""
    rows = scaling_rows(configurations(run.results))
    scaled = [row for row in rows if not row.is_baseline]
    if not rows:
        return "--resume goes on; a larger --budget gets further."
    if not scaled:
        return (
            "other world sizes give something to compare with: --world-size 1,2 (--split-gpu 2 on one GPU)."
        )
    if any(row.efficiency.low is None for row in scaled):
        return (
            "several launches of each trial give every figure an interval (--repeats 5; under torchrun or "
            "srun see --only-launch)."
        )
    if smallest_batch_reaching(rows, 0.8).batch is None:
        costly = [finding for finding in diagnose(run).findings if finding.share > 0.0 and finding.advice]
        if costly:
            return f"{costly[0].advice[0].label}: {costly[0].advice[0].command}"
        largest = max(row.batch for row in scaled)
        flag = "--batch-size" if scaled[0].trial.mode == "weak" else "--global-batch-size"
        return f"more compute for the same gradients hides more of them: {flag} {largest * 2},{largest * 4}"
    return "-v shows the interval of every figure and what makes it uncertain."


def table_section(rows: tuple[ScalingRow, ...]) -> Section:
    """One line for each world size and batch."""
    next_sizes = next_world_sizes(rows)
    varied = varied_settings([row.trial for row in rows])
    wrapped = _wrapped_heading(rows)
    law = _law_heading(max(rows, key=lambda row: row.ranks), next_sizes)
    cells = [_cells(row, next_sizes, varied, law, wrapped) for row in rows]
    return Section(
        title=_title(rows),
        table=Table(
            columns=tuple(cells[0]),
            rows=tuple(tuple(row.values()) for row in cells),
            left=frozenset(("mode", "reading")),
            # The title, -v and results.json still tell what a narrow page leaves out.
            optional=("mode", law, "serial", wrapped, "samples/s"),
        ),
        details=_details(rows),
    )


def _title(rows: tuple[ScalingRow, ...]) -> str:
    first = max(rows, key=lambda row: row.ranks)  # one rank looks the same however the work is spread
    batch = "batch per rank" if first.trial.mode == "weak" else "global batch"
    bases = {row.baseline_ranks for row in rows}
    base = "" if bases == {1} else f" · relative to {counted(first.baseline_ranks, 'rank')}"
    if len(bases) > 1:
        base = " · each batch relative to the fewest ranks measured"
    shared = any(row.trial.oversubscribe for row in rows)
    marks = " · GPU shared by ranks: no scaling measurement" if shared else ""
    brackets = ", 95 % intervals in brackets" if any(row.efficiency.has_interval for row in rows) else ""
    made = "".join(f" · {surrounding}" for surrounding in context(first.trial))
    counts = sorted({len(row.configuration.launches) for row in rows})
    launches = f"{counts[0]} to " * (len(counts) > 1) + counted(counts[-1], "launch")
    return (
        f"{first.trial.mode} scaling · {first.trial.workload} on {first.trial.device} · {batch} · "
        f"{launches} each{brackets}{base}{made}{marks}"
    )


def _cells(
    row: ScalingRow, next_sizes: tuple[int, ...], varied: tuple[str, ...], law: str, wrapped: str
) -> dict[str, str]:
    configuration = row.configuration
    return {
        "ranks": f"{row.ranks} (stand-in)" if row.trial.stand_in else f"{row.ranks}",
        "batch": f"{row.batch:,}",
        **{name: shown_value(row.trial, name) for name in varied},
        "step ms": milliseconds(configuration.step_time_s.value),
        "samples/s": significant(configuration.samples_per_s.value, 4),
        "speedup": f"{row.speedup.value:.2f}×",
        "efficiency": MISSING if row.is_baseline else percent_with_interval(row.efficiency),
        wrapped: _against_wrapped(row),
        "exposed comm": _exposed(row),
        "serial": _serial(row.serial_fraction),
        law: _allowed(row, next_sizes),
        "mode": row.trial.mode,
        "reading": row.reading,
    }


def _wrapped_heading(rows: tuple[ScalingRow, ...]) -> str:
    """The other baseline is the strategy on one rank, which is not always DDP."""
    strategies = {row.trial.strategy for row in rows} - {"single"}
    return "vs DDP×1" if strategies <= {"ddp"} else "vs wrapped×1"


def _law_heading(row: ScalingRow, sizes: tuple[int, ...]) -> str:
    """Amdahl's law is about fixed work, Gustafson's about work that grows with the ranks."""
    law = "Amdahl" if row.trial.mode == "strong" else "Gustafson"
    return f"{law} at {', '.join(map(str, sizes))}"


def _allowed(row: ScalingRow, sizes: tuple[int, ...]) -> str:
    limits = [row.allowed_speedup(size) for size in sizes]
    return ", ".join(MISSING if limit is None else f"{limit:.1f}×" for limit in dict.fromkeys(limits))


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
        worlds = sorted({row.ranks for row in rows})
        if len(worlds) > 1:
            return "Nothing can be compared yet: no batch was measured on two world sizes."
        return f"Only {counted(worlds[0], 'rank')} measured: there is no scaling to see."
    most = max(row.ranks for row in scaled)
    base = min(row.baseline_ranks for row in scaled if row.ranks == most)
    at_most = [row for row in scaled if row.ranks == most and row.baseline_ranks == base]
    best = max(at_most, key=lambda row: row.efficiency.value)
    worst = min(at_most, key=lambda row: row.efficiency.value)
    ideal = f"of {most / base:g}"
    varied = varied_settings([row.trial for row in rows])
    text = f"{most} ranks deliver {_delivery(worst, varied)}"
    if worst is not best:
        text += f" and {_delivery(best, varied)}"
    text += f" {ideal} ({best.trial.mode} scaling)"
    if best.trial.oversubscribe:
        return f"{text}: the ranks share a GPU, so this is no scaling measurement."
    doubt = "; launches differ too much to be sure" if _is_doubtful(worst) or _is_doubtful(best) else ""
    if varied:  # several jobs in one table: the smallest batch of which?
        return f"{text}{doubt}."
    return f"{text}; {_reach_text(rows)}{doubt}."


def _is_doubtful(row: ScalingRow) -> bool:
    """Whether the interval is so wide that another day would say something else."""
    share = row.efficiency
    if share.low is None or share.high is None:
        return False
    return share.high - share.low > _DOUBTFUL * share.value


def _delivery(row: ScalingRow, varied: tuple[str, ...]) -> str:
    job = "".join(f", {name} {shown_value(row.trial, name)}" for name in varied)
    reading = f"{row.reading}, {percent(row.efficiency.value)}"
    return f"{row.speedup.value:.2f}× at batch {row.batch:,}{job} ({reading})"


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
        if row.trial.mode == "weak" and row.amdahl_fraction is not None:
            text += f", Amdahl's law (for fixed work) would call {_serial(row.amdahl_fraction)} serial"
        lines.append(text)
    lines.append(
        "Exposed communication is the step minus the slowest rank's step with a hook that sends nothing: "
        "what compute does not hide. T_multi − T_single would also hold wrapper, contention and stragglers."
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
