"""Settings of stored trials: complete, of the types of their cards, and those of their id."""

from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.results.stored.settings import check_settings
from tests.builders.lines import TRIAL


def check(settings: dict[str, Any]) -> None:
    """With the id that the settings give, where they give one."""
    try:
        trial_id = Trial(settings=settings).trial_id
    except Exception:
        trial_id = TRIAL.trial_id
    check_settings(trial_id, settings)


def test_a_planned_trial_is_accepted() -> None:
    check_settings(TRIAL.trial_id, TRIAL.settings)


def test_another_id_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^trial_id: the settings have another one"):
        check_settings("0123456789ab", TRIAL.settings)
    with pytest.raises(ValueError, match=r"^trial_id"):
        check_settings(TRIAL.trial_id, {**TRIAL.settings, "batch_size": 5})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("benchmark", "nothing"),
        ("benchmark", None),
        ("benchmark", ["train"]),
        ("batch_size", "4"),
        ("batch_size", 0),
        ("batch_size", 10**400),
        ("world_size", True),
        ("world_size", -1),
        ("world_size", 1.5),
        ("strategy", "nothing"),
        ("strategy", {}),
        ("workload", 7),
        ("precision", "fp7"),
        ("device", "tpu"),
        ("env", {"A": 1}),
        ("env", "A=1"),
        ("warmup_steps", "few"),
        ("unknown_setting", {"deep": []}),
    ],
)
def test_values_that_no_card_allows_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"^settings"):
        check({**TRIAL.settings, name: value})


@pytest.mark.parametrize("name", ["benchmark", "strategy", "workload", "device", "world_size", "precision"])
def test_a_missing_setting_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^settings.*({name}|None)"):
        check({key: value for key, value in TRIAL.settings.items() if key != name})
