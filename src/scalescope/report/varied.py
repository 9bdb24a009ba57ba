"""Which settings tell trials apart, beyond those that every table shows."""

from collections import Counter
from collections.abc import Sequence

from scalescope.experiment.trial import Trial
from scalescope.report.numbers import MISSING

_MOST_NAMES = 3  # of settings in a label
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


def disambiguate(labels: Sequence[str], trials: Sequence[Trial], devices: Sequence[str]) -> tuple[str, ...]:
    """The labels, each with what tells it from others of the same words."""
    places: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    found = list(labels)
    for label, same in places.items():
        if len(same) > 1:
            several = len({devices[place] for place in same}) > 1
            for place, words in zip(same, _differences([trials[place] for place in same]), strict=True):
                found[place] = ", ".join([label, *words, *([devices[place]] if several else [])])
    return tuple(found)


def _differences(trials: Sequence[Trial]) -> list[list[str]]:
    """For each trial the settings by which it differs from what most of them have."""
    found: list[list[str]] = [[] for _ in trials]
    for name in varied_settings(trials):
        values = [shown_value(trial, name) for trial in trials]
        usual, count = Counter(values).most_common(1)[0]
        for words, value in zip(found, values, strict=True):
            if (count == 1 or value != usual) and len(words) < _MOST_NAMES:
                words.append(f"{name} {value}")
    return found


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
