"""What launches of a command say about it: counted over ranks and launches, ablations included."""

from scalescope.analysis.commands.script_facts import script_facts
from scalescope.experiment.ablations import without_communication
from tests.builders.commands import COMMAND, command_launch, make_command
from tests.builders.results import make_result, make_trial

TWO = make_command(ranks=2)


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


def test_what_still_communicates_comes_from_ablations() -> None:
    ablation = without_communication(TWO)
    assert ablation is not None
    rows = {"remaining_communication": [{"what": "broadcast of 3 buffers"}]}
    (facts,) = script_facts([command_launch(TWO, 0.1), command_launch(ablation, 0.1, tables=rows)])
    assert facts.remaining == ("broadcast of 3 buffers",)


def test_skipped_steps_are_the_most_of_any_rank() -> None:
    (facts,) = script_facts([command_launch(TWO, 0.1, **{"observed/skipped_steps": 2})])
    assert facts.skipped_steps == 2


def test_other_workloads_and_failed_launches_have_no_facts() -> None:
    trial = make_trial()
    assert script_facts([make_result(trial, [[0.1]])]) == ()


def test_every_command_has_its_own_facts() -> None:
    other = make_command(command="python other.py")
    facts = script_facts([command_launch(TWO, 0.1), command_launch(other, 0.1)])
    assert [each.command for each in facts] == [COMMAND, "python other.py"]
