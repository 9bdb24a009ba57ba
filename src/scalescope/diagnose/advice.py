"""What to try: commands of ours around the configuration at hand, never what it uses already."""

from pathlib import Path
from typing import Protocol

from scalescope.catalog.cards import all_settings
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice
from scalescope.diagnose.network import is_bound_by_network
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
    if not trial.has_setting(name) or (value is not None and str(trial.settings[name]) == str(value)):
        return ()
    if name == "accumulation_steps" and trial.accumulation_steps > 1:
        return ()
    command = _command(facts, name if value is None else f"{name}={value}")
    return (Advice(label=label, argv=command, changes_job=_changes_job(facts, name)),)


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
    return {"world_size": facts.trial.world_size, batch_name(facts): facts.batch, **narrowed_to(facts)}


def narrowed_to(facts: AdvisedJob) -> dict[str, object]:
    """Settings that narrow a request of several jobs to the one at hand."""
    settings = dict(facts.varied)
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
