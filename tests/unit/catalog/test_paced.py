"""Card of the `paced` workload: how large its layers are."""

from typing import Any

from scalescope.catalog.setting import settings_of
from scalescope.catalog.workloads.paced import Paced
from tests.builders.results import make_trial

MIB = 2**20


def paced(**changes: Any) -> Paced:
    values = {setting.name: setting.default_for("cpu") for setting in settings_of(Paced)}
    return Paced(**{**values, **changes})


def layer_bytes(card: Paced) -> list[int]:
    return [4 * elements for elements in card.layer_elements]


def test_layers_are_equal_unless_the_first_is_given() -> None:
    assert layer_bytes(paced(layers=3, layer_mb=2.0)) == [2 * MIB] * 3


def test_the_first_layer_alone_may_be_larger() -> None:
    assert layer_bytes(paced(layers=3, layer_mb=1.0, first_layer_mb=40.0)) == [40 * MIB, MIB, MIB]


def test_a_single_layer_is_the_first() -> None:
    assert layer_bytes(paced(layers=1, layer_mb=1.0, first_layer_mb=0.5)) == [MIB // 2]


def test_a_larger_first_layer_changes_nothing_about_the_pace() -> None:
    plain, giant = paced(layers=4), paced(layers=4, first_layer_mb=40.0)
    assert giant.gradient_ready_s == plain.gradient_ready_s
    assert giant.least_step_s() == plain.least_step_s()


def test_a_run_from_before_the_setting_is_the_same_trial() -> None:
    trial = make_trial(workload="paced")
    before = {name: value for name, value in trial.settings.items() if name != "first_layer_mb"}
    assert trial.settings["first_layer_mb"] is None
    assert type(trial)(settings=before).trial_id == trial.trial_id
    assert trial.replace(first_layer_mb=4.0).trial_id != trial.trial_id


def test_the_first_layer_can_be_asked_for_in_words() -> None:
    assert make_trial(workload="paced", first_layer_mb="same").settings["first_layer_mb"] is None
    assert make_trial(workload="paced", first_layer_mb="40").settings["first_layer_mb"] == 40.0
