"""The sections of `memory`: a sentence, measured bytes next to the forecast, savings, and their limits."""

import dataclasses

from scalescope.analysis.memory.forecast import Saving
from scalescope.analysis.memory.groups import MemoryGroup, memory_groups
from scalescope.analysis.memory.rows import LEAST_ON_CPU, MemoryRow
from scalescope.catalog import cards
from scalescope.experiment.trial import Trial
from scalescope.report.caveats import context
from scalescope.report.memory.verdict import name_of, verdicts
from scalescope.report.numbers import MISSING, data_size, percent, signed_percent
from scalescope.report.section import Section, Table
from scalescope.report.varied import shown_value, title_of, varied_settings
from scalescope.results.run import Run

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "activations")
_CHANGES = {
    "bf16": "bf16 (autocast)",
    "checkpointing": "activation checkpointing",
}
_ENDED = {"oom": "out of memory"}
_OTHERS = ("inputs", "library")  # of no step, but in its peak


def memory_sections(run: Run) -> tuple[Section, ...]:
    """Verdict first, then the table, then what other ways to train would save, and limits of the figures."""
    groups = memory_groups(run)
    if not groups:
        return (Section(lines=("There are no finished measurements to show.",)),)
    savings = [_savings_section(group, len(groups) > 1) for group in groups]
    return (
        Section(lines=verdicts(groups)),
        _table_section(groups),
        *(section for section in savings if section is not None),
        Section(lines=limits_of(groups)),
    )


def memory_brief(run: Run) -> tuple[Section, ...]:
    """The sentences for the main job."""
    groups = memory_groups(run)
    return (Section(lines=verdicts(groups)),) if groups else ()


def _table_section(groups: tuple[MemoryGroup, ...]) -> Section:
    rows = [row for group in groups for row in group.rows]
    varied = tuple(name for name in varied_settings([row.trial for row in rows]) if name != "strategy")
    others = tuple(name for name in _OTHERS if any(row.measured(name) is not None for row in rows))
    cells = [_cells(row, varied, others) for row in rows]
    first = rows[0].trial
    made = "".join(f" · {surrounding}" for surrounding in context(first))
    title = f"memory per rank · {first.workload} on {first.device}{made}"
    return Section(
        title=title,
        table=Table(
            columns=tuple(cells[0]),
            rows=tuple(tuple(row.values()) for row in cells),
            left=frozenset(("strategy",)),
            optional=("buffers", "temporary", *_OTHERS, "strategy", "ranks", "difference"),
        ),
        details=tuple(line for row in rows for line in _details(row)),
    )


def _cells(row: MemoryRow, varied: tuple[str, ...], others: tuple[str, ...]) -> dict[str, str]:
    sizes = {name: _size(row.measured(name)) for name in CATEGORIES}
    shown_peak = _size(row.peak) if row.status == "ok" else _ENDED.get(row.status, row.status)
    return {
        "batch": f"{row.batch:,}" + ("" if row.all_samples is None else f" ({row.all_samples:,} samples)"),
        "strategy": row.trial.strategy,
        "ranks": f"{row.trial.world_size}",
        **{name: shown_value(row.trial, name) for name in varied},
        **{("params" if name == "parameters" else name): text for name, text in sizes.items()},
        "temporary": _size(row.at_peak("temporary")),
        **{name: _size(row.measured(name)) for name in others},
        "peak": shown_peak,
        "forecast": _forecast(row),
        "difference": _difference(row),
    }


def _forecast(row: MemoryRow) -> str:
    if row.forecast is None:
        return MISSING
    layout = row.trial.memory_layout
    bound = "at most " if layout is not None and layout.is_upper_bound else ""
    return bound + data_size(row.forecast.peak)


def _difference(row: MemoryRow) -> str:
    if row.difference is None or row.is_too_small_to_compare:
        return MISSING
    return signed_percent(row.difference)


def _size(size: int | None) -> str:
    return MISSING if size is None else data_size(size)


def _details(row: MemoryRow) -> list[str]:
    """What -v adds: what lived at the peak, the same of the forecast, and why something is missing."""
    name = f"batch {row.batch:,}, {row.trial.strategy}"
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
        lines.append(f"{name}: no allocator trace: {problem}")
    return lines


def _savings_section(group: MemoryGroup, several: bool) -> Section | None:
    savings = group.savings
    if savings is None:
        return None
    whole = data_size(savings.peak)
    title = f"ways to save memory at batch {savings.batch:,} · forecast, each on its own, peak {whole}"
    if several:
        title += f" · {name_of(group.trial, ())}"
    rows = tuple((change_name(change), *_saved(change, savings.peak)) for change in savings.changes)
    return Section(
        title=title,
        table=Table(columns=("change", "saves", "share of peak"), rows=rows, left=frozenset(("change",))),
        lines=() if savings.has_state else _useless_without_state(group.trial),
        details=tuple(
            f"{change_name(change)}: unknown: {change.reason}"
            for change in savings.changes
            if change.saved_bytes is None
        ),
    )


def _useless_without_state(trial: Trial) -> tuple[str, ...]:
    """A line about the strategies that cut nothing but the optimizer's state."""
    useless = [
        title_of(name)
        for name in cards.names("strategies")
        if (layout := cards.card("strategies", name).saving_layout) is not None
        and layout.sharded == ("optimizer",)
        and name != trial.strategy
    ]
    return tuple(f"The optimizer keeps no state: {title} saves nothing." for title in useless)


def change_name(saving: Saving) -> str:
    """A change in a few words."""
    if saving.ranks is None:
        return _CHANGES.get(saving.name, saving.name)
    layout = cards.card("strategies", saving.name).saving_layout
    at_least = " (at least)" if layout is not None and layout.is_upper_bound else ""
    return f"{title_of(saving.name)}{at_least} over {saving.ranks} ranks"


def _saved(saving: Saving, whole: int) -> tuple[str, str]:
    if saving.saved_bytes is None:
        return "unknown", MISSING
    if saving.saved_bytes < 0:
        return f"costs {data_size(-saving.saved_bytes)}", percent(saving.saved_bytes / whole)
    return data_size(saving.saved_bytes), percent(saving.saved_bytes / whole)


def limits_of(groups: tuple[MemoryGroup, ...]) -> tuple[str, ...]:
    """What the figures do not include."""
    devices = {group.trial.device for group in groups}
    rows = [row for group in groups for row in group.rows if row.status == "ok"]
    lines = []
    if any(_adds_up_to_more(row) for row in rows):
        lines.append(
            "Each column shows its own maximum. The maxima do not occur at the same time: they add up to "
            "more than the peak."
        )
    if any(row.at_peak("temporary") is not None for row in rows):
        lines.append("temporary: other memory that the step held at the peak.")
    if "cpu" in devices:
        lines.append(
            "On the CPU the peak is resident memory: whole pages, including libraries and freed memory that "
            "the allocator keeps. Differences of a few MiB are not significant."
        )
    if any(row.is_too_small_to_compare for row in rows):
        lines.append(
            f"Forecasts below {data_size(LEAST_ON_CPU)} are not compared with the peak: libraries and the "
            "allocator take tens of MiB of a process, as much as such a model."
        )
    if "cuda" in devices:
        lines.append(
            "On a GPU the peak is memory allocated by torch; the CUDA context, NCCL's buffers and "
            "fragmentation come on top."
        )
    return tuple(lines)


def _adds_up_to_more(row: MemoryRow) -> bool:
    parts = [row.measured(name) for name in (*CATEGORIES, *_OTHERS)] + [row.at_peak("temporary")]
    return row.peak is not None and sum(part or 0 for part in parts) > row.peak
