"""Caveats: what a reader must know before believing a configuration, in every table and figure."""

from scalescope.analysis.configurations import Configuration
from scalescope.experiment.trial import Trial


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


def warnings_of(configuration: Configuration) -> list[str]:
    """What a reader must know before believing this configuration."""
    warnings = [f"noisy: {cause}" for cause in configuration.instabilities()] + configuration.remarks()
    warnings[:0] = context(configuration.trial)
    if configuration.trial.oversubscribe:
        warnings.insert(0, "ranks share a GPU: this is not a scaling measurement")
    return warnings
