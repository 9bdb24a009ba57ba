"""What `memory` shows: the verdict, the parts and why."""

import dataclasses

from scalescope.analysis.memory.forecast import LEAST_ON_CPU, MemoryGroup, MemoryRow, Saving, memory_groups
from scalescope.catalog import cards
from scalescope.experiment.trial import Trial
from scalescope.report.caveats import context
from scalescope.report.numbers import MISSING, counted, data_size, percent, signed_percent
from scalescope.report.section import Section, ShownCommand, Table
from scalescope.report.varied import shown_value, title_of, varied_settings
from scalescope.results.run import Run
from scalescope.results.run_commands import Argv, command_on

# ---- The sentences of `memory`: what a sample takes, which batch fits, and what to do next


def verdicts(groups: tuple[MemoryGroup, ...]) -> tuple[str, ...]:
    """A sentence for each job, and one for each optional launch that failed."""
    several = len(groups) > 1
    varied = varied_settings([group.trial for group in groups])
    lines = [f"{name_of(group.trial, varied)}: " * several + verdict(group) for group in groups]
    failed = [row for group in groups for row in group.ended_otherwise]
    lines += [
        _failure(row) for row in failed if row.trial.purpose in row.trial.benchmark_card.optional_purposes
    ]
    return tuple(lines)


def name_of(trial: Trial, varied: tuple[str, ...]) -> str:
    """The name of a job among others."""
    others = [f", {name} {shown_value(trial, name)}" for name in varied if name != "strategy"]
    return f"{trial.strategy}, {counted(trial.world_size, 'rank')}{''.join(others)}"


def _failure(row: MemoryRow) -> str:
    return f"Whether batch {row.batch:,} fits is unknown: {row.status}: {row.reason}"


def verdict(group: MemoryGroup) -> str:
    """What a sample takes, on top of what, and how many of them fit."""
    return f"{_cost(group)}; {_fit(group)}."


def _cost(group: MemoryGroup) -> str:
    line = group.line
    if line is None or line.slope <= 0:
        row = group.largest_measured
        if row is None or row.peak is None:
            return "The memory per sample is unknown"
        return f"Batch {row.batch:,} takes {data_size(row.peak)}, with no measurable growth per sample"
    source = " (forecast)" if group.line_is_forecast else ""
    held = group.activations
    share = ""
    if not group.line_is_forecast and held is not None and 0 < held.slope <= line.slope:
        share = f" ({data_size(held.slope)} of it activations)"
    return (
        f"Each sample takes {data_size(line.slope)}{share} on top of {data_size(max(0.0, line.base))}{source}"
    )


def _fit(group: MemoryGroup) -> str:
    room = "" if group.capacity is None else f" in {data_size(group.capacity)}"
    if group.is_tried:
        return _tried(group, room)
    batch = group.calculated_batch
    if batch is None:
        return "the largest batch that fits is unknown"
    if group.holds_all_samples:
        return f"all {batch:,} samples per rank of the data set fit{room} (calculated; {how_to_try(group)})"
    if batch == 0:
        return f"not even batch 1 fits{room} (calculated; {how_to_try(group)})"
    return f"the largest batch that fits{room} is {batch:,} (calculated; {how_to_try(group)})"


def _tried(group: MemoryGroup, room: str) -> str:
    fits, fails = group.bracket.fits, group.bracket.fails
    if group.bracket.is_all:
        return f"all {fits:,} samples per rank of the data set fit{room} (tried)"
    if fits == 0 and fails is None:
        return "the largest batch that fits is unknown"
    if fits == 0:
        if fails == 1:
            return f"not even batch 1 fits{room} (tried)"
        return f"batch {fails:,} does not fit{room}; smaller batches were not tried"
    if fails is not None and fails - fits == 1:
        return f"the largest batch that fits{room} is {fits:,} (tried)"
    limit = "" if fails is None else f", {fails:,} does not"
    unfinished = "" if group.bracket.is_closed else "; the search was not finished"
    return f"batch {fits:,} fits{room}{limit} (tried{unfinished})"


def how_to_try(group: MemoryGroup) -> str:
    """The options with which batches are tried, or why they cannot be."""
    if group.is_divided:
        return f"{group.trial.strategy} splits its batch; try one with --batch-size"
    limit = "" if group.is_bounded else " --memory-limit"
    if group.trial.purpose == "brief":
        return "scalescope memory tries it" + " with --memory-limit" * bool(limit)
    if group.trial.searches_batch:
        return "to try it: --memory-limit"
    return f"to try it: leave out --no-search{' and add --memory-limit' * bool(limit)}"


def next_after_memory(run: Run) -> ShownCommand | None:
    """What to do after `memory`."""
    groups = memory_groups(run)
    open_ones = [group for group in groups if not group.is_tried and group.calculated_batch is not None]
    searchable = [open_one for open_one in open_ones if not open_one.is_divided]
    if searchable and all(group.is_bounded for group in searchable):
        argv = command_on(run.path, "memory", {"search": True})
        return ShownCommand(label="find the largest batch that fits", argv=argv)
    if searchable:
        argv = command_on(run.path, "memory", {"search": True, "memory_limit": "4GiB"})
        return ShownCommand(label="find the largest batch that fits in 4 GiB", argv=argv)
    if groups:
        return ShownCommand(
            label="what a larger batch gains in speed", argv=_training_command(run, groups[0])
        )
    return None


def _training_command(run: Run, group: MemoryGroup) -> Argv:
    """Training with the smallest batch that was measured, and with the largest that fits."""
    measured = [row.batch for row in group.rows if row.status == "ok"]
    fitting = sorted({*measured, group.bracket.fits} - {0})
    changes = {"batch_size": tuple(dict.fromkeys((fitting[0], fitting[-1])))} if fitting else {}
    return command_on(run.path, "train", changes)


# ---- The sections of `memory`: a sentence, measured bytes next to the forecast, savings, and their limits


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
        return (Section(lines=("No measurement finished, so there is nothing to show.",)),)
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


# ---- What limits the batch, and what to change: `memory` explained


_SHOWN = 3  # changes, of those that save most
_LEAST_SAVED = 0.02  # of the peak


def memory_explanation(run: Run) -> tuple[Section, ...]:
    """The verdict of every job, what takes most at its largest batch, and what would save most of it."""
    groups = memory_groups(run)
    if not groups:
        return ()
    varied = varied_settings([group.trial for group in groups])
    sections = [Section(lines=verdicts(groups))]
    for group in groups:
        name = f" · {name_of(group.trial, varied)}" if len(groups) > 1 else ""
        limits = _what_limits(group)
        changes = _what_saves(group, run)
        if limits or changes:
            title = f"What limits the batch{name}"
            sections.append(Section(title=title, lines=limits, commands=changes))
    return tuple(sections)


def _what_limits(group: MemoryGroup) -> tuple[str, ...]:
    """The largest part of a rank's memory at the largest measured batch, and whether it grows with it."""
    row = group.largest_measured
    sizes = {} if row is None else _sizes(row)
    if row is None or not sizes or not row.peak:
        return ()
    name = max(sizes, key=lambda part: sizes[part])
    grows = name == "activations"
    return (
        f"At batch {row.batch:,}, {name} take most: {data_size(sizes[name])}, with a peak of "
        f"{data_size(row.peak)} per rank. "
        + (
            "They grow with the batch, so a smaller batch per rank saves them."
            if grows
            else "They do not grow with the batch, so a smaller batch does not save them."
        ),
    )


def _sizes(row: MemoryRow) -> dict[str, int]:
    return {name: size for name in CATEGORIES if (size := row.measured(name))}


def _what_saves(group: MemoryGroup, run: Run) -> tuple[ShownCommand, ...]:
    """Changes that save most of the peak by the forecast, with the command that measures each."""
    savings = group.savings
    if savings is None:
        return ()
    useful: dict[str, Saving] = {}
    for change in savings.changes:
        if change.saved_bytes is not None and change.saved_bytes > _LEAST_SAVED * savings.peak:
            useful.setdefault(change.name, change)
    ordered = sorted(useful.values(), key=lambda change: -(change.saved_bytes or 0))[:_SHOWN]
    return tuple(_command(change, savings.peak, group, run) for change in ordered)


def _command(change: Saving, peak: int, group: MemoryGroup, run: Run) -> ShownCommand:
    saved = change.saved_bytes or 0
    label = (
        f"{change_name(change)} would save {data_size(saved)} of {data_size(peak)} per rank "
        f"({percent(saved / peak)}, forecast)"
    )
    settings: dict[str, object] = {}
    if change.ranks is not None:
        settings = {"strategy": change.name, "world_size": change.ranks}
    elif change.name == "bf16":
        settings = {"precision": "bf16"}
    if not settings:
        return ShownCommand(label=label)
    return ShownCommand(label=label, argv=command_on(run.path, "memory", settings))
