"""Caveats: what a reader must know before believing a configuration, in every table and figure."""

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.other_load import disturbance_text, load_of, load_text, mean_load
from scalescope.experiment.trial import Trial
from scalescope.results.run import Run


def context(trial: Trial) -> list[str]:
    """What was emulated for this trial: an emulated network, a split GPU or stand-in ranks."""
    lines = []
    if trial.link:
        lines.append(f"network emulated at {trial.link}")
    if trial.split_gpu:
        lines.append(f"one GPU split into {trial.split_gpu} parts that share memory bandwidth and power")
    if trial.stand_in:
        lines.append("stand-in ranks: each sleeps for the compute time measured on one rank")
    return lines


def context_notes(trial: Trial) -> list[str]:
    """The same as sentences."""
    return [f"Note: {surrounding}." for surrounding in context(trial)]


def warnings_of(configuration: Configuration) -> list[str]:
    """What a reader must know before believing this configuration."""
    warnings = [f"noisy: {cause}" for cause in configuration.instabilities()] + configuration.remarks()
    warnings[:0] = [*context(configuration.trial), *_other_load(configuration)]
    if configuration.trial.oversubscribe:
        warnings.insert(0, "ranks share a GPU: this is not a scaling measurement")
    return warnings


def _other_load(configuration: Configuration) -> list[str]:
    """What others used meanwhile, and what became of the launches that it disturbed."""
    if configuration.is_disturbed:
        return [f"on a busy machine: {disturbance_text(mean_load(configuration.loads))}"]
    if configuration.left_out:
        launches = len(configuration.launches) + configuration.left_out
        return [
            f"{configuration.left_out} of {launches} launches are left out: the rest of their round ran "
            "under different load"
        ]
    return [load_text(mean_load(configuration.loads))] if mean_load(configuration.loads).is_present else []


def disturbance_lines(run: Run) -> tuple[str, ...]:
    """How many launches of a run other load disturbed, and what became of them; nothing where it was none."""
    load = load_of(run)
    if not load.disturbed:
        return ()
    text = load_text(load.mean) or "other load came and went"
    return (
        f"Other load disturbed {load.disturbed} of {load.launches} launches ({text}). Only launches of one "
        "round under similar load are compared; disturbed trials were repeated together.",
    )
