"""Launches that explain a step: the same job with a part removed, and recorded on a GPU."""

from collections.abc import Iterable, Sequence

from scalescope.catalog.benchmarks.train import AUTO, Train
from scalescope.experiment.ablations import with_preloaded_input, without_optimizer
from scalescope.experiment.recordings import breakdown_of
from scalescope.experiment.trial import Trial

_MOST_JOBS = 4  # of a larger sweep only the speeds are measured
_WINDOW_S = 3.0  # enough to see what a part costs


def step_ablations(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The jobs with a part removed whose cost the host's clock cannot tell."""
    if len(trials) > _MOST_JOBS:
        return ()
    wanted = [ablation for trial in trials if _is_plain(trial) for ablation in _ablations(trial)]
    return tuple(shortened(ablation) for ablation in wanted)


def step_recordings(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """On a GPU the jobs recorded: the host's clock does not see what the GPU does."""
    if len(trials) > _MOST_JOBS:
        return ()
    return tuple(shortened(breakdown_of(trial)) for trial in trials if trial.on_gpu and _is_plain(trial))


def _ablations(trial: Trial) -> Iterable[Trial]:
    preloaded = with_preloaded_input(trial)
    if preloaded is not trial:
        yield preloaded
    no_update = without_optimizer(trial)
    if trial.on_gpu and no_update is not None:
        yield no_update


def _is_plain(trial: Trial) -> bool:
    """Whether a launch measures steps, and no epochs or accuracies, whose length is not ours to shorten."""
    options = trial.options(Train)
    counted = options.steps_per_epoch == AUTO or isinstance(options.steps_per_epoch, int)
    return counted and options.epochs == 1 and not options.eval and not options.stand_in


def shortened(trial: Trial) -> Trial:
    """A launch that only explains needs no long window."""
    window_s = trial.window_s
    return trial if window_s is None else trial.replace(window=min(window_s, _WINDOW_S))
