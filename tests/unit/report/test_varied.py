"""Settings that distinguish trials get a column or a label; those in every table, and equal ones, do not."""

from scalescope.experiment.trial import Trial
from scalescope.report.varied import disambiguate, shown_value, varied_settings

BASE = {"world_size": 1, "batch_size": 8, "strategy": "ddp", "precision": "fp32", "env": None}


def trials(*changes: dict[str, object]) -> list[Trial]:
    return [Trial(settings={**BASE, **change}) for change in changes]


def test_equal_settings_are_not_varied() -> None:
    assert varied_settings(trials({}, {})) == ()
    assert varied_settings([]) == ()


def test_varied_settings_are_named_in_order() -> None:
    assert varied_settings(trials({"seed": 1}, {"seed": 2, "precision": "bf16"})) == ("precision", "seed")


def test_what_every_table_shows_is_left_out() -> None:
    shown = {
        "world_size": 2,
        "batch_size": None,
        "global_batch_size": 64,
        "oversubscribe": True,
        "without_communication": True,
        "purpose": "nccl_log",
    }
    assert varied_settings(trials(dict.fromkeys(shown, 0), shown)) == ()


def test_a_setting_that_only_some_trials_have_is_not_varied_by_that() -> None:
    assert varied_settings(trials({}, {"bucket_cap_mb": 25})) == ()
    assert varied_settings(trials({}, {"bucket_cap_mb": 25}, {"bucket_cap_mb": None})) == ("bucket_cap_mb",)


def test_a_plain_baseline_does_not_make_the_strategy_varied() -> None:
    assert varied_settings(trials({"strategy": "single"}, {"strategy": "ddp"})) == ()
    assert varied_settings(trials({"strategy": "fsdp"}, {"strategy": "ddp"})) == ("strategy",)


def test_variables_are_compared_by_their_values() -> None:
    assert varied_settings(trials({"env": {"A": "1"}}, {"env": {"A": "1"}})) == ()
    assert varied_settings(trials({"env": {"A": "1"}}, {"env": {"A": "2"}})) == ("env",)


def test_true_and_one_are_different_values() -> None:
    assert varied_settings(trials({"flag": True}, {"flag": 1})) == ("flag",)


def test_values_are_shown_as_a_person_writes_them() -> None:
    (trial,) = trials({"link": "1gbit", "env": {"A": "1", "B": "x y"}, "threads_per_rank": 2})
    assert shown_value(trial, "link") == "1gbit"
    assert shown_value(trial, "threads_per_rank") == "2"
    assert shown_value(trial, "env") == "A=1 B=x y"


def test_what_is_missing_is_a_dash() -> None:
    (trial,) = trials({"link": None})
    assert shown_value(trial, "link") == "—"
    assert shown_value(trial, "bucket_cap_mb") == "—"


def test_equal_labels_are_distinguished_by_unusual_settings() -> None:
    trials = [
        Trial(settings={"lr": lr, "jit": jit}) for lr, jit in ((1, False), (1, False), (2, False), (1, True))
    ]
    trials[1] = trials[1].replace(seed=7)
    trials[0] = trials[0].replace(seed=0)
    labels = disambiguate(["a"] * 4, trials, ["cpu"] * 4)
    assert labels[2:] == ("a, lr 2", "a, jit True")
    assert len(set(labels)) == 4


def test_different_labels_stay_as_they_are() -> None:
    trials = [Trial(settings={"lr": 1}), Trial(settings={"lr": 2})]
    assert disambiguate(["a", "b"], trials, ["cpu", "cpu"]) == ("a", "b")


def test_the_same_trial_on_two_devices_is_distinguished_by_the_device() -> None:
    trials = [Trial(settings={"lr": 1})] * 2
    assert disambiguate(["a", "a"], trials, ["cpu", "H200"]) == ("a, cpu", "a, H200")
