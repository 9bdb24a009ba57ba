"""Settings that distinguish trials get a column or a label; those in every table, and equal ones, do not."""

import pytest

from scalescope.experiment.trial import Trial
from scalescope.report.varied import disambiguate, shown_value, varied_settings

BASE = {"world_size": 1, "batch_size": 8, "strategy": "ddp", "precision": "fp32", "env": None}


def trials(*changes: dict[str, object]) -> list[Trial]:
    return [Trial(settings={**BASE, **change}) for change in changes]


SHOWN = {
    "world_size": 2,
    "batch_size": None,
    "global_batch_size": 64,
    "oversubscribe": True,
    "without_communication": True,
    "purpose": "nccl_log",
}


@pytest.mark.parametrize(
    ("changes", "varied"),
    [
        ([], ()),
        ([{}, {}], ()),
        ([{"seed": 1}, {"seed": 2, "precision": "bf16"}], ("precision", "seed")),
        ([dict.fromkeys(SHOWN, 0), SHOWN], ()),  # every table shows them
        ([{}, {"bucket_cap_mb": 25}], ()),  # only some trials have it
        ([{}, {"bucket_cap_mb": 25}, {"bucket_cap_mb": None}], ("bucket_cap_mb",)),
        ([{"strategy": "single"}, {"strategy": "ddp"}], ()),  # a plain baseline
        ([{"strategy": "fsdp"}, {"strategy": "ddp"}], ("strategy",)),
        ([{"env": {"A": "1"}}, {"env": {"A": "1"}}], ()),
        ([{"env": {"A": "1"}}, {"env": {"A": "2"}}], ("env",)),
        ([{"flag": True}, {"flag": 1}], ("flag",)),
    ],
)
def test_settings_that_distinguish_trials_are_varied(
    changes: list[dict[str, object]], varied: tuple[str, ...]
) -> None:
    assert varied_settings(trials(*changes)) == varied


def test_values_are_shown_as_a_person_writes_them() -> None:
    (trial,) = trials({"link": "1gbit", "env": {"A": "1", "B": "x y"}, "threads_per_rank": 2, "seed": None})
    names = ("link", "threads_per_rank", "env", "seed", "bucket_cap_mb")
    assert [shown_value(trial, name) for name in names] == ["1gbit", "2", "A=1 B=x y", "—", "—"]


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
