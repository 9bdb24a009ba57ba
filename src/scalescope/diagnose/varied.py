"""What differs between the trials of a run: how a finding names its configuration."""

from collections.abc import Iterable

from scalescope.analysis.commands import OBSERVED_SETTINGS
from scalescope.experiment.trial import ABLATIONS, Trial

_SHOWN_ANYWAY = ("world_size", "batch_size", "global_batch_size", "strategy", *ABLATIONS)


def varied_settings(trials: Iterable[Trial]) -> dict[int, tuple[str, ...]]:
    """By number of ranks, what differs among its trials: between numbers of ranks defaults differ by
    themselves."""
    values: dict[int, dict[str, set[str]]] = {}
    for trial in trials:
        by_name = values.setdefault(trial.world_size, {})
        for name, value in trial.settings.items():
            if name not in _SHOWN_ANYWAY and name not in OBSERVED_SETTINGS:
                by_name.setdefault(name, set()).add(repr(value))
    return {
        ranks: tuple(name for name, values_here in by_name.items() if len(values_here) > 1)
        for ranks, by_name in values.items()
    }
