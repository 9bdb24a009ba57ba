"""Which settings differ between trials, beyond those that every table shows."""

from collections import Counter
from collections.abc import Sequence

from scalescope.analysis.commands import OBSERVED_SETTINGS
from scalescope.catalog import cards
from scalescope.experiment.expand import defaults_of
from scalescope.experiment.explanations import LENGTH
from scalescope.experiment.trial import ABLATIONS, Trial
from scalescope.report.numbers import MISSING, shortened

_MOST_NAMES = 3  # of settings in a label
_ALWAYS_SHOWN = (
    "world_size",
    "batch_size",
    "global_batch_size",
    "oversubscribe",
    *ABLATIONS,
    "stand_in",
    "purpose",
)

_LONGEST_COMMAND = 60

_NEVER_CHANGED = (
    *OBSERVED_SETTINGS,
    "command",  # which every table names
    "world_size",
    "device",
    "backend",
    "threads_per_rank",
    "strategy",
    *LENGTH,
    "window",
    "warmup_steps",
    *ABLATIONS,
)


def varied_settings(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Names of the settings with more than one value; a plain baseline has none of the wrapper's."""
    names = {name for trial in trials for name in trial.settings} - set(_ALWAYS_SHOWN) - OBSERVED_SETTINGS
    return tuple(name for name in sorted(names) if len(_values(trials, name)) > 1)


def disambiguate(labels: Sequence[str], trials: Sequence[Trial], devices: Sequence[str]) -> tuple[str, ...]:
    """The labels, each with the settings that differ from others with the same label."""
    indices: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        indices.setdefault(label, []).append(index)
    unique = list(labels)
    for label, same in indices.items():
        if len(same) > 1:
            several = len({devices[index] for index in same}) > 1
            for index, words in zip(same, _differences([trials[index] for index in same]), strict=True):
                unique[index] = ", ".join([label, *words, *([devices[index]] if several else [])])
    return tuple(unique)


def _differences(trials: Sequence[Trial]) -> list[list[str]]:
    """For each trial the settings by which it differs from what most of them have."""
    differences: list[list[str]] = [[] for _ in trials]
    for name in varied_settings(trials):
        values = [shown_value(trial, name) for trial in trials]
        usual, count = Counter(values).most_common(1)[0]
        for words, value in zip(differences, values, strict=True):
            if (count == 1 or value != usual) and len(words) < _MOST_NAMES:
                words.append(f"{name} {value}")
    return differences


def _values(trials: Sequence[Trial], name: str) -> set[str]:
    having = [trial for trial in trials if name in trial.settings]
    if name == "strategy":  # the plain baseline is compared with, not compared
        having = [trial for trial in having if trial.is_wrapped]
    return {repr(trial.settings[name]) for trial in having}


def changed_settings(trial: Trial) -> tuple[str, ...]:
    """Names of the settings that are not at their default, with this workload on this device.

    What the machine decides where nothing is asked for, and how long a launch measures, is left out.
    """
    selection = {
        kind: str(trial.settings[name]) for kind, name in cards.CHOOSERS.items() if name in trial.settings
    }
    defaults: dict[str, object] = {}
    for card in cards.cards_of_trial(trial.benchmark, selection):
        defaults |= defaults_of(card, selection, trial.device)
    return tuple(
        name
        for name, value in sorted(trial.settings.items())
        if name in defaults and name not in _NEVER_CHANGED and value != defaults[name]
    )


def title_of(strategy: str) -> str:
    """A strategy as people write it."""
    return str(cards.card("strategies", strategy).title or strategy)


def shown_value(trial: Trial, name: str) -> str:
    """A setting's value in a cell or a sentence."""
    if name not in trial.settings:
        return MISSING
    value = trial.settings[name]
    if isinstance(value, dict):
        return " ".join(f"{key}={text}" for key, text in value.items())
    if name == "command":
        return shortened(str(value), _LONGEST_COMMAND)
    return MISSING if value is None else str(value)
