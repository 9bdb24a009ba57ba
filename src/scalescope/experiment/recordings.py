"""Recordings: the same job under a profiler, in launches of their own that no figure of speed is made of."""

from scalescope.experiment.trial import Trial

ARRIVALS = "arrivals"
BREAKDOWN = "breakdown"


def arrivals_of(trial: Trial) -> Trial:
    """The same ranks recorded, to learn who waits for whom."""
    return trial.replace(benchmark=ARRIVALS)


def records_arrivals(trial: Trial) -> bool:
    return trial.benchmark == ARRIVALS


def breakdown_of(trial: Trial) -> Trial:
    """The same job recorded, to learn what a step of one rank consists of."""
    return trial.replace(benchmark=BREAKDOWN)


def records_breakdown(trial: Trial) -> bool:
    return trial.benchmark == BREAKDOWN


def only_explains(trial: Trial) -> bool:
    """Whether a launch is made to explain others: where it fails, nothing that was asked for is missing."""
    recorded = records_arrivals(trial) or records_breakdown(trial)
    return recorded or trial.is_ablation or trial.benchmark == "comm"


def explained_job(trial: Trial) -> Trial | None:
    """The job that a launch only explains, with nothing removed; None where it explains no job of its own."""
    if not only_explains(trial) or not trial.has_strategy:
        return None
    return timed_training_of(trial).replace(**dict.fromkeys(trial.ablations, False))


def timed_training_of(trial: Trial) -> Trial:
    """The timed training of a recorded trial."""
    kept = {name: value for name, value in trial.settings.items() if not name.startswith("profile_")}
    return Trial(settings=kept).replace(benchmark="train")
