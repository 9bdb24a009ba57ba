"""Variants of one job in words: in what the two sides differ, and what their speeds may be called."""

import re
import shlex
from collections.abc import Mapping, Sequence

from scalescope.analysis.comparison.runs import ComparedConfig, RunComparison, SettingDifference
from scalescope.experiment.explanations import command_words
from scalescope.experiment.trial import Trial
from scalescope.report.commands import units_of
from scalescope.report.machine import threads_differ, threads_of
from scalescope.report.numbers import MISSING, counted, shortened

_WORDS = {"world_size": "ranks", "threads_per_rank": "threads per rank"}
_LONGEST = 200  # of what differs, in one line
_SHOWN = 3  # pairs in sentences; the table has all


def variant_lines(comparison: RunComparison) -> tuple[str, ...]:
    """In what variants differ, and what the speeds of other work say; nothing where settings are equal."""
    differing = dict.fromkeys(
        f"{text}."
        for config in comparison.judged
        for text in (differs_text(config), _threads(config))
        if text
    )
    return (*list(differing)[:_SHOWN], *_of_other_work(comparison.other_work))


def differs_text(config: ComparedConfig) -> str:
    """`hidden_dim 512 → 1024; batch_size 32 → 64`; empty where all settings are equal."""
    ranks_first = sorted(config.differs, key=lambda difference: difference[0] != "world_size")
    words = [word for difference in ranks_first for word in _difference_words(difference)]
    return shortened("; ".join(words), _LONGEST)


def work_text(config: ComparedConfig) -> str:
    """What stands in place of a verdict where the two sides do not do the same."""
    return "different work" if config.work == "different" else config.work


def merged_name(before: str, after: str) -> str:
    """`single → ddp, 1 rank → 2 ranks, batch 256` of two names, part by part."""
    parts = before.split(", "), after.split(", ")
    if len(parts[0]) != len(parts[1]):
        return f"{before} → {after}"
    pairs = zip(*parts, strict=True)
    return ", ".join(left if left == right else f"{left} → {right}" for left, right in pairs)


def _threads(config: ComparedConfig) -> str:
    """CPU threads that were not asked for: a command may set its own."""
    before, after = threads_of(config.before), threads_of(config.after)
    is_said = config.work == "other ranks" or "threads_per_rank" in (name for name, _, _ in config.differs)
    return "" if is_said or before == after else f"CPU threads per rank {_value(before)} → {_value(after)}"


def _of_other_work(configs: Sequence[ComparedConfig]) -> tuple[str, ...]:
    jobs = [config for config in configs if config.work == "different"]
    scaled = [config for config in configs if config.work == "other ranks"]
    lines = [_of_ranks(config) for config in scaled[:_SHOWN]]
    if jobs:
        lines.insert(0, _of_jobs(jobs))
    return tuple(lines)


def _of_jobs(jobs: Sequence[ComparedConfig]) -> str:
    ratios = ", ".join(f"{config.speedup.value:.2f}×" for config in jobs[:_SHOWN])
    more = f" and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
    return (
        f"Different work: {ratios}{more} the {_units(jobs)}/s are speeds of different jobs, neither a "
        "regression nor an improvement."
    )


def _of_ranks(config: ComparedConfig) -> str:
    before, after = config.before.trial.world_size, config.after.trial.world_size
    threads = " ".join(threads_differ((config.before, config.after)))
    text = (
        f"{counted(after, 'rank')} deliver{'s' * (after == 1)} {config.speedup.value:.2f}× the "
        f"{_units((config,))}/s of {counted(before, 'rank')}, {config.per_rank:.2f}× per rank."
    )
    return f"{text} {threads}".strip()


def _units(configs: Sequence[ComparedConfig]) -> str:
    """What the rates of these pairs count."""
    return " or ".join(dict.fromkeys(unit_of(config) for config in configs))


def unit_of(config: ComparedConfig) -> str:
    """What both sides of a pair are counted in, as headings say it."""
    same = config.before.unit == config.after.unit
    return units_of((config.before, config.after)) if same else config.unit


def _difference_words(difference: SettingDifference) -> list[str]:
    name, before, after = difference
    if name == "command":
        return _command_words(str(before or ""), str(after or ""))
    if isinstance(before, Mapping) or isinstance(after, Mapping):
        old, new = (dict(side) if isinstance(side, Mapping) else {} for side in (before, after))
        names = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return [f"{key} {_value(old.get(key))} → {_value(new.get(key))}" for key in names]
    return [f"{_WORDS.get(name, name)} {_value(before)} → {_value(after)}"]


def _value(value: object) -> str:
    return "none" if value is None else str(value)


def _command_words(before: str, after: str) -> list[str]:
    """The options in which two commands differ, each with its value: `--hidden 512` → `--hidden 1024`."""
    old, new = _options(before), _options(after)
    removed = [option for option in old if option not in new]
    added = {_flag(option): option for option in new if option not in old}
    words = [
        f"`{option}` → `{added.pop(flag)}`" if (flag := _flag(option)) in added else f"without `{option}`"
        for option in removed
    ]
    return [*words, *(f"with `{option}`" for option in added.values())] or [
        "the order of the command's words"
    ]


def _options(command: str) -> list[str]:
    """The words of a command, every flag together with the value that follows it."""
    options: list[str] = []
    for word in command_words(command):
        follows_flag = bool(options) and options[-1].startswith("-") and not {" ", "="} & set(options[-1])
        if follows_flag and not word.startswith("-"):
            options[-1] += f" {shlex.quote(word)}"
        else:
            options.append(word)
    return options


def _flag(option: str) -> str:
    """The flag of an option; words that are none, such as scripts, are alike."""
    return option.replace("=", " ").split(" ")[0] if option.startswith("-") else ""


def sides_text(before: Sequence[Trial], after: Sequence[Trial]) -> str:
    """Which configurations each of two runs has, in one line, by name with numbers in their order."""
    sides = [
        "; ".join(sorted({trial.label for trial in side}, key=_in_order)) or MISSING
        for side in (before, after)
    ]
    return f"the first has {shortened(sides[0], _LONGEST)}, the second {shortened(sides[1], _LONGEST)}"


def _in_order(label: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]{1,18})", label)]
