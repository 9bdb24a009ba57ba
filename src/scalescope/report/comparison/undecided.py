"""What is inconclusive: why, and what would decide it."""

from collections.abc import Sequence
from pathlib import Path

from scalescope.analysis.comparison.runs import ComparedConfig
from scalescope.analysis.run_spread import LEAST_RUNS, RunSpread
from scalescope.report.numbers import counted, short_percent
from scalescope.report.section import Section, ShownCommand
from scalescope.results.run_commands import PROGRAM

_TITLE = "What would decide it"


def spread_line(spread: RunSpread) -> tuple[str, ...]:
    """The run-to-run variation and its source; nothing inside one run."""
    if spread.deviation == 0.0 and spread.runs is None:
        return ()
    source = (
        f"default, as fewer than {LEAST_RUNS} comparable runs of this hardware are known"
        if spread.runs is None
        else f"from {counted(spread.runs, 'run')} on this hardware"
    )
    return (f"Run-to-run spread {short_percent(spread.deviation)} ({source}); all intervals include it.",)


def is_hidden_by_spread(config: ComparedConfig) -> bool:
    """Whether launches made in turns would decide what launches of two runs cannot, however many."""
    return config.remedy is not None and config.remedy.interleaved is not None


def undecided(
    configs: Sequence[ComparedConfig], paths: tuple[Path, Path] | None, *, can_interleave: bool
) -> tuple[Section, ...]:
    """How many launches would decide, a threshold that is met already, or that only turns decide."""
    remedies = [config.remedy for config in configs if config.remedy is not None]
    counts = [remedy.launches for remedy in remedies if remedy.launches is not None]
    turns = [remedy.interleaved for remedy in remedies if remedy.interleaved is not None]
    lines = []
    if counts:
        lines.append(
            f"About {counted(max(counts), 'launch')} per run, if they stay as noisy "
            f"({len(counts)} of {counted(len(configs), 'configuration')})."
        )
    if turns:
        lines.append(_alternation_line(max(turns), len(turns), can_interleave=can_interleave))
    hopeless = len(remedies) - len(counts) - len(turns)
    if hopeless:
        lines.append(
            f"No practical number of launches ({counted(hopeless, 'configuration')}): longer windows "
            "(--window) or a quieter machine."
        )
    thresholds = [remedy.threshold for remedy in remedies]
    known = [threshold for threshold in thresholds if threshold is not None]
    if known and len(known) == len(thresholds):
        percent = short_percent(max(known)).replace(" ", "")
        lines.append(f"--threshold {percent}: these launches show no difference as large as that.")
    commands = (_interleaving(paths),) if turns and can_interleave and paths is not None else ()
    return (Section(title=_TITLE, lines=tuple(lines), commands=commands),)


def _alternation_line(launches: int, count: int, *, can_interleave: bool) -> str:
    only = (
        f"Only alternating launches, about {counted(launches, 'launch')} per side "
        f"({counted(count, 'configuration')}): run-to-run variation hides the difference."
    )
    if can_interleave:
        return only
    return (
        f"{only} Both runs have the same settings, so measure the old code as a separate workload: "
        "see --interleave."
    )


def _interleaving(paths: tuple[Path, Path]) -> ShownCommand:
    argv = (PROGRAM, "compare", *map(str, paths), "--interleave")
    return ShownCommand(label="measure both in turns", argv=argv)
