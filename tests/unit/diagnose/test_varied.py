"""What differs between the trials of a run."""

from scalescope.diagnose.varied import varied_settings
from tests.builders.results import make_trial


def test_settings_that_differ_among_the_same_number_of_ranks_are_named() -> None:
    trials = [make_trial(optimizer=name, seed=seed) for name, seed in (("sgd", 0), ("adamw", 0), ("sgd", 1))]
    assert set(varied_settings(trials)[1]) == {"optimizer", "seed"}


def test_what_is_shown_anyway_is_not_named() -> None:
    trials = [make_trial(batch_size=10), make_trial(batch_size=20, without_communication=True)]
    assert varied_settings(trials) == {1: ()}


def test_numbers_of_ranks_are_not_compared() -> None:
    trials = [make_trial(optimizer="sgd"), make_trial(optimizer="adamw", world_size=2, strategy="ddp")]
    assert varied_settings(trials) == {1: (), 2: ()}


def test_no_trials_differ_in_nothing() -> None:
    assert varied_settings([]) == {}
