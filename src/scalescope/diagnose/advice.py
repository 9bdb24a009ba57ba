"""What to try: commands of ours around the configuration at hand, never what it uses already."""

from pathlib import Path
from typing import Protocol

from scalescope.analysis.commands import can_set_batch
from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.cards import all_settings
from scalescope.catalog.code_lines import CodeLine, ScriptContext
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.diagnose.exchange import is_bound_by_network
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice
from scalescope.experiment.explanations import BATCH
from scalescope.experiment.trial import Trial
from scalescope.results.run_commands import PROGRAM, Argv, command_on, flags_of


class AdvisedJob(Protocol):
    """A configuration of a run that something can be advised for: Facts or StepFacts."""

    @property
    def path(self) -> Path: ...

    @property
    def trial(self) -> Trial: ...

    @property
    def batch(self) -> int: ...

    @property
    def varied(self) -> tuple[tuple[str, object], ...]: ...

    @property
    def strategies(self) -> tuple[str, ...]: ...


def advise(facts: AdvisedJob, label: str, name: str, value: object = None) -> tuple[Advice, ...]:
    """To move a setting, as a tuple of one; empty where the configuration has no such setting or is there."""
    trial = facts.trial
    if trial.is_command and not _can_set(trial, name):
        return advise_edit(facts, label, name, value)
    if not trial.has_setting(name) or (value is not None and str(trial.settings[name]) == str(value)):
        return ()
    if name == "accumulation_steps" and trial.accumulation_steps > 1:
        return ()
    command = _command(facts, name if value is None else f"{name}={value}")
    return (Advice(label=label, argv=command, changes_job=_changes_job(facts, name), setting=name),)


def _can_set(trial: Trial, name: str) -> bool:
    """Whether a setting of a command can be moved without an edit of its script."""
    if name in BATCH:
        return can_set_batch(trial)
    owners = (Placement, trial.workload_card, trial.strategy_card)
    return any(setting.name == name for owner in owners for setting in settings_of(owner))


def advise_edit(facts: AdvisedJob, label: str, name: str, value: object = None) -> tuple[Advice, ...]:
    """To do in the script of a command what a setting does elsewhere: the lines of PyTorch, or a sentence;
    empty where neither is known."""
    changes_job = _changes_job(facts, name)
    if name in BATCH:
        where = f"write {{{name}}} in the command where its value goes, to try other values"
        return (Advice(label=f"{label}: {where}", changes_job=changes_job),)
    if name in _SENTENCES:
        return (Advice(label=f"{label}: {_SENTENCES[name]}", changes_job=changes_job),)
    lines = [] if value is None else _script_lines(facts.trial, name, value)
    if not lines:
        return ()
    return (Advice(label=f"{label}: in the script, {', '.join(lines)}", changes_job=changes_job),)


_SENTENCES = {
    "accumulation_steps": "in the script, accumulate gradients over several batches, under "
    "model.no_sync() except for the last",
    "prefetch_stream": "in the script, DataLoader(..., pin_memory=True) and tensor.to(device, "
    "non_blocking=True)",
}
_OF_CALLS = {"loader": "DataLoader", "optimizer": "the optimizer", "wrapper": "DistributedDataParallel"}


def _script_lines(trial: Trial, name: str, value: object) -> list[str]:
    """What a value is in a script, as its card says."""
    levers = [setting.lever for setting in all_settings(trial.benchmark)[name] if setting.lever is not None]
    context = ScriptContext(device="cuda" if trial.on_gpu else "cpu", world_size=trial.world_size)
    codes = [code for lever in levers if (code := lever.code_of(value, context)) is not None]
    return [_line_text(line) for code in codes[:1] for line in code.lines if _is_short(line)]


def _is_short(line: CodeLine) -> bool:
    return line.part not in ("imports", "definitions")


def _line_text(line: CodeLine) -> str:
    call = _OF_CALLS.get(line.part)
    return line.source if call is None or not line.argument else f"{call}(..., {line.source})"


def _changes_job(facts: AdvisedJob, name: str) -> bool:
    """Whether moving a setting trains something else."""
    lever = all_settings(facts.trial.benchmark)[name][0].lever
    return lever is not None and lever.changes == "the job"


def advise_more(facts: AdvisedJob, label: str, name: str, value: float) -> tuple[Advice, ...]:
    """To raise a setting to a value; empty where it is there or beyond."""
    now = facts.trial.settings.get(name)
    if isinstance(now, int | float) and now >= value:
        return ()
    return advise(facts, label, name, value)


def _command(facts: AdvisedJob, lever: str) -> Argv:
    """The command that tries a lever on this configuration: the run's own request, narrowed to it."""
    return command_on(facts.path, "tune", this_job(facts), ("--levers", lever))


def this_job(facts: AdvisedJob) -> dict[str, object]:
    """The settings that narrow a request to the configuration at hand."""
    batch = {batch_name(facts): facts.batch} if can_set_batch(facts.trial) else {}
    return {"world_size": facts.trial.world_size, **batch, **narrowed_to(facts)}


def narrowed_to(facts: AdvisedJob) -> dict[str, object]:
    """Settings that narrow a request of several jobs to the one at hand."""
    settings = dict(facts.varied)
    if facts.trial.is_command:
        return settings
    if facts.strategies and not facts.trial.is_wrapped:  # the request has settings of the wrapper
        return {**settings, "strategy": facts.strategies[0]}
    several = len(facts.strategies) > 1
    return {**settings, "strategy": facts.trial.strategy} if several else settings


def comm_command(facts: Facts, *words: str) -> Argv:
    """The command that measures the network as these ranks use it."""
    trial = facts.trial
    placement = {"env": trial.env, "link": trial.link, "split_gpu": trial.split_gpu}
    placed = {name: value for name, value in placement.items() if value}
    ranks = {"world_size": facts.ranks, "device": trial.device}
    return (PROGRAM, "comm", *words, *flags_of({**ranks, **placed}))


def batch_name(facts: AdvisedJob) -> str:
    """The setting that gives the batch."""
    if facts.trial.is_command and can_set_batch(facts.trial):
        return "batch_size" if facts.trial.options(Train).global_batch_size is None else "global_batch_size"
    return "global_batch_size" if facts.trial.mode == "strong" else "batch_size"


def fewer_bytes(facts: Facts) -> tuple[Advice, ...]:
    """Ways to send less: where the network decides, the cheapest first; elsewhere 16 bits may well cost
    more."""
    half: tuple[Advice, ...] = ()
    if facts.trial.comm_hook == "none":
        half = advise(facts, "send gradients in 16 bits", "comm_hook")
    less = (
        *advise(facts, "compute more per byte sent", batch_name(facts)),
        *advise(facts, "exchange less often", "accumulation_steps"),
    )
    return (*half, *less) if is_bound_by_network(facts) else (*less, *half)
