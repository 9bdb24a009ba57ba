"""Batches in words, and which of them are settings."""

import pytest

from scalescope.analysis.commands.batches import OBSERVED_SETTINGS, batch_text, can_set_batch
from scalescope.experiment.trial import Trial
from tests.builders.commands import make_command
from tests.builders.results import make_trial

TOKENS = make_command(observed_batch_size=16384, observed_unit="tokens")
GIVEN = make_command(command="train.py {batch_size}", batch_size=8, observed_unit="tokens")


@pytest.mark.parametrize(
    ("trial", "text"),
    [
        (make_trial(batch_size=2048), "batch 2,048"),
        (make_command(), "batch 32"),
        (TOKENS, "16,384 tokens"),
        (GIVEN, "batch 8"),
        (make_command(observed_batch_size=None), "unknown batch"),
    ],
)
def test_a_batch_is_named_in_its_unit(trial: Trial, text: str) -> None:
    assert batch_text(trial) == text


def test_another_count_can_be_named() -> None:
    assert batch_text(TOKENS, 4096) == "4,096 tokens"


def test_only_a_placeholder_makes_the_batch_of_a_command_a_setting() -> None:
    assert can_set_batch(make_trial()) and can_set_batch(GIVEN)
    assert not can_set_batch(make_command())


def test_observed_settings_are_no_choices() -> None:
    assert {"observed_batch_size", "observed_unit", "observed_wrapper"} <= OBSERVED_SETTINGS
    assert "batch_size" not in OBSERVED_SETTINGS
