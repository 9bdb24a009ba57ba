"""Training commands: batches in words, speeds in samples or steps, and what launches say about a script."""

import math

import pytest

from scalescope.analysis.commands import OBSERVED_SETTINGS, batch_text, can_set_batch, script_facts
from scalescope.analysis.configurations import Configuration, comparable_log_rates, configurations
from scalescope.analysis.durations import LaunchDurations, estimated_launch_s
from scalescope.analysis.launches import summarise
from scalescope.experiment.explanations import without_communication
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.commands import COMMAND, command_launch, make_command
from tests.builders.results import make_result, make_trial

TOKENS = make_command(observed_batch_size=16384, observed_unit="tokens")
GIVEN = make_command(command="train.py {batch_size}", batch_size=8, observed_unit="tokens")


def test_a_batch_is_named_in_its_unit() -> None:
    unknown = make_command(observed_batch_size=None)
    trials = (make_trial(batch_size=2048), make_command(), TOKENS, GIVEN, unknown)
    texts = ["batch 2,048", "batch 32", "16,384 tokens", "batch 8", "unknown batch"]
    assert [batch_text(trial) for trial in trials] == texts
    assert batch_text(TOKENS, 4096) == "4,096 tokens"


def test_only_a_placeholder_makes_the_batch_of_a_command_a_setting() -> None:
    assert can_set_batch(make_trial()) and can_set_batch(GIVEN)
    assert not can_set_batch(make_command())
    assert {"observed_batch_size", "observed_unit", "observed_wrapper"} <= OBSERVED_SETTINGS
    assert "batch_size" not in OBSERVED_SETTINGS


# speeds


TWO = make_command(ranks=2)


def configuration_of(*launches: Result) -> Configuration:
    (configuration,) = configurations(launches)
    return configuration


def test_samples_are_those_that_ranks_counted_or_the_user_says() -> None:
    launch = summarise(command_launch(TWO, 0.1, samples=32))
    assert launch.samples == 640 and launch.samples_per_s == pytest.approx(640.0)
    given = TWO.replace(samples_per_step=50)
    assert summarise(command_launch(given, 0.1, samples=32)).samples == 1000
    assert summarise(command_launch(given, 0.1, samples=None)).samples == 1000


def test_without_samples_speed_is_in_steps() -> None:
    configuration = configuration_of(command_launch(TWO, 0.1, samples=None))
    assert (configuration.samples_per_s, configuration.samples_per_step) == (None, None)
    assert configuration.unit == "steps" and configuration.speed.value == pytest.approx(10.0)
    assert (configuration.tokens_per_s, configuration.model_flops_per_s, configuration.mfu) == (None,) * 3
    assert configuration.launches[0].losses == ()
    launches = (command_launch(TWO, 0.1), command_launch(TWO, 0.2, launch=1, samples=None))
    assert configuration_of(*launches).log_rates == pytest.approx([math.log(10.0), math.log(5.0)])


def test_tokens_are_a_unit_of_their_own() -> None:
    trial = make_command(observed_unit="tokens", observed_batch_size=1024)
    configuration = configuration_of(command_launch(trial, 0.1, samples=1024))
    assert configuration.unit == "tokens" and configuration.tokens_per_s == pytest.approx(10240.0)


def test_speeds_are_compared_in_steps_where_samples_cannot_be() -> None:
    known = configuration_of(command_launch(TWO, 0.1))
    unknown = configuration_of(command_launch(TWO, 0.2, samples=None))
    left, right = comparable_log_rates(known, unknown)
    assert left[0] - right[0] == pytest.approx(math.log(2.0))
    assert comparable_log_rates(known, known) == (known.log_rates, known.log_rates)
    tokens = configuration_of(command_launch(TWO.replace(observed_unit="tokens"), 0.1, samples=32768))
    left, right = comparable_log_rates(known, tokens)
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
    assert not durations.knows(make_command(ranks=2, command="python other.py"))


# what launches say about a script


def test_the_launch_of_most_ranks_says_how_steps_are_counted() -> None:
    counters = {"observed/events_per_step": 2, "observed/micro_batches": 4, "observed/samples_from": "a, b"}
    (facts,) = script_facts([command_launch(make_command(), 0.1), command_launch(TWO, 0.1, **counters)])
    assert (facts.command, facts.trial.world_size) == (COMMAND, 2)
    assert (facts.step_from, facts.optimizers) == ("optimizer steps", "AdamW")
    assert (facts.events_per_step, facts.micro_batches, facts.samples_from) == (2, 4, "a, b")
    assert facts.counts_optimizer_steps


def test_calls_that_were_left_out_are_those_of_the_launch_with_most_of_them() -> None:
    launches = [
        command_launch(TWO, 0.1, **{"suppressed/torch.save": 1, "suppressed/wandb.log": 2}),
        command_launch(TWO, 0.1, launch=1, **{"suppressed/torch.save": 3}),
    ]
    (facts,) = script_facts(launches)
    assert facts.suppressed == {"torch.save": 6, "wandb.log": 4}


def test_what_still_communicates_comes_from_ablations_and_skipped_steps_from_any_rank() -> None:
    ablation = without_communication(TWO)
    assert ablation is not None
    rows = {"remaining_communication": [{"what": "broadcast of 3 buffers"}]}
    (facts,) = script_facts([command_launch(TWO, 0.1), command_launch(ablation, 0.1, tables=rows)])
    assert facts.remaining == ("broadcast of 3 buffers",)
    (facts,) = script_facts([command_launch(TWO, 0.1, **{"observed/skipped_steps": 2})])
    assert facts.skipped_steps == 2


def test_every_command_has_its_own_facts_and_other_workloads_have_none() -> None:
    other = make_command(command="python other.py")
    facts = script_facts([command_launch(TWO, 0.1), command_launch(other, 0.1)])
    assert [each.command for each in facts] == [COMMAND, "python other.py"]
    trial = make_trial()
    assert script_facts([make_result(trial, [[0.1]])]) == ()
