"""The sentences of `memory`: what a sample takes, which batch fits, and what to do next."""

from scalescope.analysis.memory.groups import MemoryGroup, memory_groups
from scalescope.analysis.memory.rows import MemoryRow
from scalescope.experiment.trial import Trial
from scalescope.report.numbers import counted, data_size
from scalescope.report.section import ShownCommand
from scalescope.report.varied import shown_value, varied_settings
from scalescope.results.run import Run
from scalescope.results.run_commands import Argv, command_on


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
        return "the verb memory tries it" + " with --memory-limit" * bool(limit)
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
