"""The sections of `memory`: a sentence, measured bytes beside the forecast, savings, and their limits."""

import dataclasses

from scalescope.analysis.memory import MemoryGroup, MemoryRow, memory_groups
from scalescope.analysis.memory_forecast import Saving
from scalescope.experiment.trial import Trial
from scalescope.report.numbers import MISSING, counted, data_size, percent
from scalescope.report.section import Section, Table
from scalescope.report.training import surroundings
from scalescope.report.varied import shown_value, varied_settings
from scalescope.results.run import Run

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "activations")
_CHANGES = {
    "fsdp": "FSDP",
    "zero1": "ZeRO-1",
    "bf16": "bf16 (autocast)",
    "checkpointing": "activation checkpointing",
}
_ENDED = {"oom": "out of memory"}


def memory_sections(run: Run) -> tuple[Section, ...]:
    """Verdict first, then the table, then what other ways to train would save, and what to doubt."""
    groups = memory_groups(run)
    if not groups:
        return (Section(lines=("Nothing was measured that could be shown.",)),)
    savings = [_savings_section(group, len(groups) > 1) for group in groups]
    return (
        Section(lines=_verdicts(groups)),
        _table_section([row for group in groups for row in group.rows]),
        *(section for section in savings if section is not None),
        Section(lines=_limits(groups)),
    )


def memory_brief(run: Run) -> tuple[Section, ...]:
    """The sentences for the main job."""
    groups = memory_groups(run)
    return (Section(lines=_verdicts(groups)),) if groups else ()


def next_after_memory(run: Run) -> str | None:
    """What to do after `memory`."""
    groups = memory_groups(run)
    if any(not group.is_searched and group.calculated_batch is not None for group in groups):
        return "scalescope memory --memory-limit 4GiB tries which batch fits that much."
    if groups:
        return "scalescope train shows what a larger batch gains in speed."
    return None


def _verdicts(groups: tuple[MemoryGroup, ...]) -> tuple[str, ...]:
    several = len(groups) > 1
    varied = varied_settings([group.trial for group in groups])
    return tuple(_name(group.trial, varied) * several + verdict(group) for group in groups)


def _name(trial: Trial, varied: tuple[str, ...]) -> str:
    others = [f", {name} {shown_value(trial, name)}" for name in varied if name != "strategy"]
    return f"{trial.settings['strategy']}, {counted(trial.world_size, 'rank')}{''.join(others)}: "


def verdict(group: MemoryGroup) -> str:
    """What a sample costs, on top of what, and how many of them fit."""
    return f"{_cost(group)}; {_fit(group)}."


def _cost(group: MemoryGroup) -> str:
    line = group.line
    if line is None or line.slope <= 0:
        row = group.largest_measured
        if row is None or row.peak is None:
            return "What a sample costs is unknown"
        return f"Batch {row.batch:,} takes {data_size(row.peak)} and no growth with the batch is seen"
    source = " (forecast)" if group.line_is_forecast else ""
    held = group.activations
    share = ""
    if not group.line_is_forecast and held is not None and 0 < held.slope <= line.slope:
        share = f", {data_size(held.slope)} of it activations,"
    return f"A sample costs {data_size(line.slope)}{share} on top of {data_size(max(0.0, line.base))}{source}"


def _fit(group: MemoryGroup) -> str:
    room = "" if group.capacity is None else f" {data_size(group.capacity)}"
    fits, fails = group.bracket.fits, group.bracket.fails
    if group.is_searched or fails is not None:
        if fails is not None and fits == 0:
            return f"no batch fits{room}: {fails:,} does not (tried)"
        if group.bracket.is_closed:
            return f"the largest batch that fits{room} is {fits:,} (tried)"
        limit = "" if fails is None else f" and {fails:,} does not"
        return f"batch {fits:,} fits{room}{limit} (tried; the search was not finished)"
    batch = group.calculated_batch
    if batch is None:
        return "the largest batch that fits is unknown"
    return f"the largest batch that fits{room} is {batch:,} (calculated, not tried{_how_to_try(group)})"


def _how_to_try(group: MemoryGroup) -> str:
    return ": --memory-limit tries" if group.trial.device == "cpu" and group.trial.settings["search"] else ""


def _table_section(rows: list[MemoryRow]) -> Section:
    varied = tuple(name for name in varied_settings([row.trial for row in rows]) if name != "strategy")
    cells = [_cells(row, varied) for row in rows]
    first = rows[0].trial
    made = "".join(f" · {one}" for one in surroundings(first))
    title = f"memory of a rank · {first.settings['workload']} on {first.device}{made}"
    return Section(
        title=title,
        table=Table(
            columns=tuple(cells[0]),
            rows=tuple(tuple(row.values()) for row in cells),
            left=frozenset(("strategy",)),
            optional=("buffers", "temporary", "strategy", "ranks"),
        ),
        details=tuple(line for row in rows for line in _details(row)),
    )


def _cells(row: MemoryRow, varied: tuple[str, ...]) -> dict[str, str]:
    sizes = {name: _size(row.measured(name)) for name in CATEGORIES}
    shown_peak = _size(row.peak) if row.status == "ok" else _ENDED.get(row.status, row.status)
    return {
        "batch": f"{row.batch:,}",
        "strategy": str(row.trial.settings["strategy"]),
        "ranks": f"{row.trial.world_size}",
        **{name: shown_value(row.trial, name) for name in varied},
        **{("params" if name == "parameters" else name): text for name, text in sizes.items()},
        "temporary": _size(row.at_peak("temporary")),
        "peak": shown_peak,
        "forecast": MISSING if row.forecast is None else data_size(row.forecast.peak),
        "difference": MISSING if row.difference is None else f"{row.difference * 100:+.1f} %",
    }


def _size(size: int | None) -> str:
    return MISSING if size is None else data_size(size)


def _details(row: MemoryRow) -> list[str]:
    """What -v adds: what lived at the peak, the same of the forecast, and why something is missing."""
    name = f"batch {row.batch:,}, {row.trial.settings['strategy']}"
    lines = []
    parts = {part: row.at_peak(part) for part in ("activations", "gradients", "temporary")}
    if all(size is not None for size in parts.values()):
        text = ", ".join(f"{part} {_size(size)}" for part, size in parts.items())
        lines.append(f"{name}: at the peak {text}, before the step {_size(row.measured('before_step'))}")
    if row.forecast is not None:
        sizes = dataclasses.asdict(row.forecast).items()
        lines.append(
            f"{name}: forecast at the peak " + ", ".join(f"{part} {data_size(size)}" for part, size in sizes)
        )
    if row.no_forecast is not None:
        lines.append(f"{name}: no forecast: {row.no_forecast}")
    if (problem := row.counters.get("trace/problem")) is not None:
        lines.append(f"{name}: no trace of the allocator: {problem}")
    return lines


def _savings_section(group: MemoryGroup, several: bool) -> Section | None:
    row = group.largest_measured
    if not group.savings or row is None or row.forecast is None:
        return None
    whole = row.forecast.peak
    title = f"what would save memory at batch {row.batch:,} · forecast, each by itself"
    if several:
        title += f" · {_name(group.trial, ()).removesuffix(': ')}"
    rows = tuple((_change(one), *_saved(one, whole)) for one in group.savings)
    return Section(
        title=title,
        table=Table(columns=("change", "saves", "of the peak"), rows=rows, left=frozenset(("change",))),
        details=tuple(
            f"{_change(one)}: unknown: {one.reason}" for one in group.savings if one.saved_bytes is None
        ),
    )


def _change(one: Saving) -> str:
    return _CHANGES[one.name] + ("" if one.ranks is None else f" over {one.ranks} ranks")


def _saved(one: Saving, whole: int) -> tuple[str, str]:
    if one.saved_bytes is None:
        return "unknown", MISSING
    if one.saved_bytes < 0:
        return f"costs {data_size(-one.saved_bytes)}", percent(one.saved_bytes / whole)
    return data_size(one.saved_bytes), percent(one.saved_bytes / whole)


def _limits(groups: tuple[MemoryGroup, ...]) -> tuple[str, ...]:
    devices = {group.trial.device for group in groups}
    lines = ["Not everything lives at once, so the peak is less than the sum of its parts."]
    if "cpu" in devices:
        lines.append(
            "On the CPU the peak is resident memory: whole pages, with what libraries take, and with freed "
            "memory that the allocator keeps. Differences of a few MiB say nothing."
        )
    if "cuda" in devices:
        lines.append(
            "On a GPU the peak is what torch's allocator had handed out; the driver's context, NCCL's "
            "buffers and gaps between blocks come on top."
        )
    return tuple(lines)
