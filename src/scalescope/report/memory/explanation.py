"""What limits the batch, and what to change: `memory` explained."""

from scalescope.analysis.memory.forecast import Saving
from scalescope.analysis.memory.groups import MemoryGroup, memory_groups
from scalescope.analysis.memory.rows import MemoryRow
from scalescope.report.memory.sections import CATEGORIES, change_name
from scalescope.report.memory.verdict import name_of, verdicts
from scalescope.report.numbers import data_size, percent
from scalescope.report.section import Section, ShownCommand
from scalescope.report.varied import varied_settings
from scalescope.results.run import Run
from scalescope.results.run_commands import command_on

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
