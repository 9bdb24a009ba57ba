"""Which settings tell trials apart, beyond those that every table shows."""

from collections.abc import Sequence

from scalescope.experiment.trial import Trial
from scalescope.report.numbers import MISSING

_ALWAYS_SHOWN = (
    "world_size",
    "batch_size",
    "global_batch_size",
    "oversubscribe",
    "ablation",
    "stand_in",
    "purpose",
)


def varied_settings(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Names of the settings with more than one value; a plain baseline has none of the wrapper's."""
    names = sorted({name for trial in trials for name in trial.settings} - set(_ALWAYS_SHOWN))
    return tuple(name for name in names if len(_values(trials, name)) > 1)


def _values(trials: Sequence[Trial], name: str) -> set[str]:
    found = {repr(trial.settings[name]) for trial in trials if name in trial.settings}
    return found - {"'single'"} if name == "strategy" else found


def shown_value(trial: Trial, name: str) -> str:
    """A setting's value in a cell or a sentence."""
    if name not in trial.settings:
        return MISSING
    value = trial.settings[name]
    if isinstance(value, dict):
        return " ".join(f"{key}={text}" for key, text in value.items())
    return MISSING if value is None else str(value)
