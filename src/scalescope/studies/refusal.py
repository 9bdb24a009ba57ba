"""Refuses what can never run here, with the forecast and the flag that forces it, before torch is loaded."""

from collections.abc import Iterable

from scalescope.analysis.memory.capacity import LeastMemory, largest_batch_in, least_memory
from scalescope.errors import CannotRun
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.report.numbers import counted, data_size
from scalescope.secret_variables import with_secrets, with_values
from scalescope.studies.plan import Plan


def refuse_unknown_secrets(trials: Iterable[Trial]) -> None:
    """Refuse trials with secrets whose values are not known here."""
    for trial in trials:
        with_values(trial.env)
        if trial.is_command:
            with_secrets(" ".join((trial.command, *trial.varied.values())))


def refuse_impossible(plan: Plan) -> None:
    """Refuse trials whose least memory exceeds all memory there is, unless that is wanted."""
    if not plan.experiment.measuring.allow_oom:
        refuse_too_large(plan.all_trials, plan.machine)


def refuse_too_large(trials: Iterable[Trial], machine: Machine) -> None:
    """Refuse the trial that exceeds the memory by most; its batch is what has to become smaller."""
    excesses = [(excess, trial) for trial in trials if (excess := _excess(trial, machine)) > 1.0]
    if excesses:
        _, worst = max(excesses, key=lambda pair: pair[0])
        raise CannotRun(_refusal(worst, machine))


def _excess(trial: Trial, machine: Machine) -> float:
    """The least memory of a trial divided by what is there; 0 where either is unknown."""
    least, room = least_memory(trial), room_per_rank(trial, machine)
    if least is None or room is None or _may_run_out(trial):
        return 0.0
    return least.peak / room if room else 0.0


def _may_run_out(trial: Trial) -> bool:
    """Whether running out is an answer, and harms no other process."""
    is_bounded = trial.on_gpu or trial.memory_limit is not None
    return bool(trial.benchmark_card.oom_is_result) and is_bounded


def room_per_rank(trial: Trial, machine: Machine) -> int | None:
    """All memory of the host or the GPU, shared by the ranks on it; None where it is unknown."""
    if not trial.on_gpu:
        ranks = machine.ranks_on_a_host(trial.world_size)
        return None if machine.memory_bytes is None else machine.memory_bytes // ranks
    if not machine.gpus:
        return None
    largest = max(gpu.memory_bytes for gpu in machine.gpus)
    gpus = 1 if trial.split_gpu is not None else len(machine.gpus)
    return largest // -(-trial.world_size // gpus)


def _refusal(trial: Trial, machine: Machine) -> str:
    least, room = least_memory(trial), room_per_rank(trial, machine)
    assert least is not None and room is not None
    there = f"{data_size(room)} of {'GPU ' if trial.on_gpu else ''}memory"
    if trial.world_size > 1:
        there += " for each rank"
    return (
        f"{trial.workload} ({trial.job_label}) needs at least {data_size(least.peak)} per rank "
        f"({_parts(least)}), but only {there} is available; {_what_fits(trial, least, room)} "
        "add --allow-oom to run it anyway"
    )


def _parts(least: LeastMemory) -> str:
    sizes = {
        "parameters": least.parameters,
        "gradients": least.gradients + least.buckets,
        "optimizer": least.optimizer,
        "batches": least.inputs,
        "activations": least.activations,
    }
    return ", ".join(f"{name} {data_size(size)}" for name, size in sizes.items() if size)


def _what_fits(trial: Trial, least: LeastMemory, room: int) -> str:
    """The largest batch that the forecast does not exclude."""
    if least.model > room:
        return "the model alone does not fit;"
    largest = largest_batch_in(trial, room)
    if largest is None:
        return "not even one sample fits;"
    flag = "--batch-size" if trial.global_batch_size is None else "--global-batch-size"
    ranks = "" if trial.world_size == 1 else f" on {counted(trial.world_size, 'rank')}"
    return f"at most {flag} {largest} can fit{ranks};"
