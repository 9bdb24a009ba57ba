"""The next step from one rank to several: a command that measures a run's job on both, or what that lacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalescope.analysis.commands import obstacle
from scalescope.analysis.prediction.collective_times import network_named
from scalescope.analysis.prediction.jobs import MissingInput, inputs_of
from scalescope.experiment.command_line import COMMAND, joined, on_any_ranks, takes_world_size, words_of
from scalescope.experiment.trial import Trial
from scalescope.report.section import ShownCommand
from scalescope.results.run import Run
from scalescope.results.run_commands import PROGRAM, command_on

_NETWORK = "nvlink4"


def on_more_ranks(
    run: Run, trial: Trial, verb: str, label: str, changes: Mapping[str, object] | None = None
) -> ShownCommand:
    """The command that measures a job on one rank and on several, by a verb; `label` says what that shows."""
    machine = run.environment.get("machine") or {}
    ranks = max(2, trial.world_size)
    if trial.on_gpu and not trial.split_gpu and ranks > len(machine.get("gpus") or ()):
        return _without_gpus(run)
    settings: dict[str, object] = {"world_size": (1, ranks), **(changes or {})}
    if _has_all_cores(trial, machine):
        settings["threads_per_rank"] = None  # auto: several ranks share the cores
    if not trial.is_wrapped and not trial.is_command:
        settings["strategy"] = "auto"
    if trial.is_command and not takes_world_size(trial.command, trial.varied):
        words = words_of(trial.command)
        problem = obstacle(words, Path(run.record.directory or "."))
        if problem is not None:
            return ShownCommand(label=f"{label}: {problem}")
        started = on_any_ranks(words)
        if started is None:
            return ShownCommand(
                label=f"{label}: write {{world_size}} where the command takes the number of ranks"
            )
        settings[COMMAND] = joined(started)
    flags = run.record.flags if verb == run.record.verb else ()
    return ShownCommand(label=label, argv=command_on(run.path, verb, settings, flags))


def _without_gpus(run: Run) -> ShownCommand:
    """Where ranks would have to share a GPU: what is predicted for more of them, or else all figures."""
    path = str(run.path.resolve())
    try:
        inputs_of(run, network_named(_NETWORK))
    except MissingInput:
        return ShownCommand(label="a page with every figure", argv=(PROGRAM, "report", path))
    return ShownCommand(
        label="predict more GPUs, assuming that NVLink connects them",
        argv=(PROGRAM, "predict", path, "--network", _NETWORK),
    )


def _has_all_cores(trial: Trial, machine: Mapping[str, Any]) -> bool:
    """Whether a rank has the threads that it gets where nothing is asked for."""
    cores = machine.get("cores")
    return isinstance(cores, int) and trial.threads_per_rank == max(1, cores // trial.world_size)
