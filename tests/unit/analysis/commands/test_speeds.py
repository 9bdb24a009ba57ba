"""Speeds of commands: of samples where they are known, of steps where they are not, and never of losses."""

import math

import pytest

from scalescope.analysis.configurations import Configuration, comparable_log_rates, configurations
from scalescope.analysis.durations import LaunchDurations, estimated_launch_s
from scalescope.analysis.launches import summarise
from scalescope.experiment.ablations import without_communication
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.commands import command_launch, make_command

TWO = make_command(ranks=2)


def configuration_of(*launches: Result) -> Configuration:
    (configuration,) = configurations(launches)
    return configuration


def test_samples_are_those_that_all_ranks_counted() -> None:
    launch = summarise(command_launch(TWO, 0.1, samples=32))
    assert launch.samples == 640 and launch.samples_per_s == pytest.approx(640.0)


def test_what_the_user_says_of_samples_counts_more() -> None:
    given = TWO.replace(samples_per_step=50)
    assert summarise(command_launch(given, 0.1, samples=32)).samples == 1000
    assert summarise(command_launch(given, 0.1, samples=None)).samples == 1000


def test_without_samples_speed_is_in_steps() -> None:
    configuration = configuration_of(command_launch(TWO, 0.1, samples=None))
    assert (configuration.samples_per_s, configuration.samples_per_step) == (None, None)
    assert configuration.unit == "steps" and configuration.speed.value == pytest.approx(10.0)
    assert (configuration.tokens_per_s, configuration.model_flops_per_s, configuration.mfu) == (None,) * 3
    assert configuration.launches[0].losses == ()


def test_one_launch_without_samples_makes_all_speeds_those_of_steps() -> None:
    launches = (command_launch(TWO, 0.1), command_launch(TWO, 0.2, launch=1, samples=None))
    assert configuration_of(*launches).log_rates == pytest.approx([math.log(10.0), math.log(5.0)])


def test_tokens_are_a_unit_of_their_own() -> None:
    trial = make_command(observed_unit="tokens", observed_batch_size=1024)
    configuration = configuration_of(command_launch(trial, 0.1, samples=1024))
    assert configuration.unit == "tokens" and configuration.tokens_per_s == pytest.approx(10240.0)


def test_speeds_are_compared_in_steps_where_one_side_knows_no_samples() -> None:
    known = configuration_of(command_launch(TWO, 0.1))
    unknown = configuration_of(command_launch(TWO, 0.2, samples=None))
    left, right = comparable_log_rates(known, unknown)
    assert left[0] - right[0] == pytest.approx(math.log(2.0))
    assert comparable_log_rates(known, known) == (known.log_rates, known.log_rates)


def test_samples_are_not_compared_with_tokens() -> None:
    samples = configuration_of(command_launch(TWO, 0.1, samples=32))
    tokens = configuration_of(command_launch(TWO.replace(observed_unit="tokens"), 0.1, samples=32768))
    left, right = comparable_log_rates(samples, tokens)
    assert left == pytest.approx(right)


def test_smaller_batches_than_the_command_was_given_are_no_remark() -> None:
    given = make_command(command="train.py {batch_size}", batch_size=64)
    remarks = configuration_of(command_launch(given, 1.0, samples=32)).remarks()
    assert not any("instead of" in remark for remark in remarks)


def with_losses(trial: Trial) -> Result:
    result = command_launch(trial, 0.1)
    for record in result.ranks:
        record.samples["loss"] = [1.0] * 10
    return result


def test_losses_of_a_command_with_something_removed_are_void() -> None:
    ablation = without_communication(TWO)
    assert ablation is not None
    assert summarise(with_losses(ablation)).losses == ()
    assert summarise(with_losses(TWO)).losses == (1.0,) * 10


def test_what_wraps_the_model_and_its_optimizer_are_facts_of_a_launch() -> None:
    configuration = configuration_of(command_launch(TWO, 0.1, wrapper="fsdp2"))
    assert (configuration.wrapper, configuration.launches[0].own_optimizer) == ("fsdp2", "AdamW")


def test_durations_of_a_command_need_no_batch() -> None:
    unknown = TWO.replace(observed_batch_size=None)
    durations = LaunchDurations([command_launch(unknown, 0.1, samples=None)])
    four = unknown.replace(world_size=4)
    assert durations.knows(four) and durations.estimate_s(four) > 0.0
    assert estimated_launch_s(unknown) > 0.0


def test_another_command_says_nothing_about_durations() -> None:
    durations = LaunchDurations([command_launch(TWO, 0.1)])
    assert not durations.knows(make_command(ranks=2, command="python other.py"))
