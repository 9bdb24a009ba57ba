"""Ablations: the same job with one thing removed, to measure what that thing costs."""

from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import Trial

PRELOADED = "with_preloaded_input"
NO_COMM = "without_communication"
NO_OPTIMIZER = "without_optimizer"


def single_rank_baseline(trial: Trial) -> Trial:
    """The same job on one rank without any wrapper; of a command, whatever it does on one rank."""
    if trial.strategy_card.plain_on_one_rank:
        return trial.on_one_rank()
    wrapper = settings_of(trial.strategy_card)
    kept = {n: v for n, v in trial.settings.items() if n not in {setting.name for setting in wrapper}}
    return Trial(settings=kept).replace(strategy="single").on_one_rank()


def at_per_rank_batch(trial: Trial) -> Trial:
    """The trial with one rank's part of a global batch; with a batch for each rank it has that already."""
    total = trial.global_batch_size
    return trial if total is None else trial.replace(global_batch_size=total // trial.replicas)


def without_communication(trial: Trial) -> Trial | None:
    """The same ranks sending nothing; None where the strategy cannot do without."""
    if trial.world_size == 1 or NO_COMM not in trial.strategy_card.removable(trial.settings):
        return None
    if trial.settings.get("find_unused_parameters"):  # DDP itself exchanges in every step then
        return None
    return _ablated(trial, NO_COMM)


def with_preloaded_input(trial: Trial) -> Trial:
    """The same with batches that wait on the device."""
    return _ablated(trial, PRELOADED) if has_loader(trial) else trial


def without_optimizer(trial: Trial) -> Trial | None:
    """The same without updating parameters; None where updating them is also communication."""
    return (
        _ablated(trial, NO_OPTIMIZER)
        if NO_OPTIMIZER in trial.strategy_card.removable(trial.settings)
        else None
    )


def has_loader(trial: Trial) -> bool:
    """Whether samples come from a loader, so that a step may wait for them."""
    if trial.is_command:
        return bool(trial.settings.get("observed_loader"))
    return (
        trial.settings.get("data", "synthetic") != "synthetic"
        or trial.settings.get("num_workers") is not None
    )


def _ablated(trial: Trial, what: str) -> Trial:
    return trial.replace(**{what: True})


def has_ablation(trial: Trial, what: str) -> bool:
    """Whether a trial is an ablation of that kind."""
    return what in trial.ablations
