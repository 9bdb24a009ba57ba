"""What reports say of a training command: its job and what was recognized of its script."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from scalescope.analysis.commands import ScriptFacts, script_facts
from scalescope.analysis.configurations import SAMPLES, Configuration, configurations
from scalescope.analysis.scaling.rows import OTHER_LOAD, UNKNOWN_SAMPLES, NotCompared, not_compared
from scalescope.errors import BadInput
from scalescope.experiment.command_line import words_of
from scalescope.experiment.trial import Trial
from scalescope.quantities import data_size
from scalescope.report.numbers import counted
from scalescope.report.section import Section
from scalescope.results.run import Run

# ---- Jobs in words: the short name of what is trained, and the unit of its speed


_SCRIPT = ".py"
_MODULE = frozenset({"-m", "--module"})
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def job_name(trial: Trial) -> str:
    """The workload; of a command the name of its script, such as `train.py`."""
    return command_name(trial.command) if trial.is_command else trial.workload


def command_name(command: str) -> str:
    """The script of a command, or the module that it runs, or else its program."""
    try:
        words = words_of(command)
    except BadInput:  # a stored command is shown, whatever it is
        return command
    scripts = [PurePath(word).name for word in words if PurePath(word).suffix == _SCRIPT]
    modules = [module for flag, module in itertools.pairwise(words) if flag in _MODULE]
    names = [*scripts, *(module for module in modules if module not in _LAUNCHERS), PurePath(words[0]).name]
    return names[0]


def units_of(measured: Iterable[Configuration]) -> str:
    """What speeds count, in headings and at axes: `samples`, `images`, `tokens` or `steps`."""
    return " or ".join(sorted({configuration.unit for configuration in measured})) or SAMPLES


# ---- A training command in words: how its steps and samples were counted, and what was changed in it


NOT_COMPARED = "There is no scaling to report: the samples per step do not allow comparing world sizes."
_UNKNOWN = (
    "Samples: the samples per step are not known, so world sizes cannot be compared; add "
    "--samples-per-step with the samples per rank, per step."
)
_UNKNOWN_REPLICAS = (
    "Samples: which ranks share a batch is not known, so neither are the samples per step; add "
    "--samples-per-step with the samples of a step divided by the number of ranks."
)
_SCALING = {"weak": "the same on every rank", "strong": "the same over all ranks together"}


def script_sections(run: Run, *, with_command: bool = False) -> tuple[Section, ...]:
    """A section for each command of a run, with the command itself where it is wanted; empty where there is
    none."""
    measured = [member for member in configurations(run.results) if member.trial.is_command]
    sections = []
    for facts in script_facts(run.results):
        same = [member for member in measured if member.trial.command == facts.command]
        title = f"How {job_name(facts.trial)} was measured"
        command = (f"Command: {facts.command}",) if with_command else ()
        sections.append(Section(title=title, lines=(*command, *script_lines(facts, same))))
    return tuple(section for section in sections if section.lines)


def script_lines(facts: ScriptFacts, measured: Sequence[Configuration]) -> list[str]:
    """Steps, samples, what was left out, what still communicates, and skipped steps."""
    return [
        *_step_line(facts),
        *_sample_lines(facts, measured),
        *_written_line(facts),
        *_left_out_line(facts),
        *_separate_launches_line(facts),
        *_remaining_line(facts),
        *_skipped_line(facts),
    ]


def _step_line(facts: ScriptFacts) -> list[str]:
    """`Step: optimizer steps of AdamW; 2 of them make a step.`"""
    if facts.step_from is None:
        return []
    text = f"Step: {facts.step_from}"
    if facts.optimizers is not None and facts.counts_optimizer_steps:
        text += f" of {facts.optimizers}"
    words = []
    if (facts.events_per_step or 1) > 1:
        words.append(f"{facts.events_per_step} of them make a step")
    if (facts.micro_batches or 1) > 1:
        words.append(f"{facts.micro_batches} forward passes per step")
    return [f"{'; '.join((text, *words))}."]


def _sample_lines(facts: ScriptFacts, measured: Sequence[Configuration]) -> list[str]:
    """`Samples: 16,384 tokens per rank and step (first input of GPT), the same on every rank …`"""
    normal = [member for member in measured if not member.trial.is_ablation]
    reasons = [reason for reason in not_compared(normal) if reason.reason != OTHER_LOAD]
    if not normal or any(reason.reason == UNKNOWN_SAMPLES for reason in reasons):
        return [_UNKNOWN_REPLICAS if facts.shares_unknown else _UNKNOWN] if normal else []
    if reasons:
        return [_other_samples(reasons[0])]
    source = f" ({facts.samples_from})" if facts.samples_from else ""
    by_batch = {member.trial.given_batch_size: member for member in normal}
    if len(by_batch) > 1:
        return [f"Samples: counted in every launch{source}."]
    largest = max(normal, key=lambda member: member.trial.world_size)
    several = len({member.trial.world_size for member in normal}) > 1
    mode = largest.trial.mode
    scaling = f"; {_SCALING[mode]} at all world sizes: {mode} scaling" if several else ""
    return [f"Samples: {_per_replica(largest)} per {_share(largest)} and step{source}{scaling}."]


def _share(configuration: Configuration) -> str:
    """`rank`, or where ranks share a batch `replica (2 ranks, 1 replica)`."""
    trial = configuration.trial
    if trial.replicas == trial.world_size:
        return "rank"
    return f"replica ({counted(trial.world_size, 'rank')}, {counted(trial.replicas, 'replica')})"


def _per_replica(configuration: Configuration) -> str:
    samples = configuration.samples_per_step or 0.0
    return f"{samples / configuration.trial.replicas:,.0f} {configuration.unit}"


def _other_samples(reason: NotCompared) -> str:
    """Neither weak nor strong scaling, with the figures that show it."""
    counts = ", ".join(f"{_of_each_rank(member)} on {_ranks(member)}" for member in reason.members)
    return (
        f"Samples: per rank and step they are {counts}, which is neither weak nor strong scaling; world "
        "sizes are not compared. --samples-per-step gives their number."
    )


def _of_each_rank(configuration: Configuration) -> str:
    samples = configuration.samples_per_step or 0.0
    return f"{samples / configuration.trial.world_size:,.0f} {configuration.unit}"


def _ranks(configuration: Configuration) -> str:
    return counted(configuration.trial.world_size, "rank")


def _written_line(facts: ScriptFacts) -> list[str]:
    """What the command wrote, where its files went, and how to keep them."""
    if not facts.written_files:
        return []
    written = f"{counted(facts.written_files, 'file')} ({data_size(facts.written_bytes)})"
    if folder := facts.trial.settings.get("output_to"):
        return [f"Files: the command wrote {written} per launch to {folder}; your files are unchanged."]
    return [
        f"Files: the command wrote {written} per launch to a private copy, which was discarded; your files "
        "are unchanged. --output-to DIR keeps them."
    ]


def _left_out_line(facts: ScriptFacts) -> list[str]:
    if not facts.suppressed:
        return []
    calls = ", ".join(f"{name} {counted(count, 'time')}" for name, count in facts.suppressed.items())
    return [f"Not sent while measuring, per launch: {calls}; --allow-writes sends it."]


def _separate_launches_line(facts: ScriptFacts) -> list[str]:
    if not facts.own_starts:
        return []
    reasons = "; ".join(f"{name} ({reason})" for name, reason in facts.own_starts.items())
    return [f"Measured in separate launches, not after the timed steps: {reasons}."]


def _remaining_line(facts: ScriptFacts) -> list[str]:
    if not facts.remaining:
        return []
    return [f"Still sent in launches without communication: {', '.join(facts.remaining)}."]


def _skipped_line(facts: ScriptFacts) -> list[str]:
    if not facts.skipped_steps:
        return []
    return [f"GradScaler skipped {counted(facts.skipped_steps, 'step')} of a launch."]
