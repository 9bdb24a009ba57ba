"""Short names of jobs, and the units of their speeds."""

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.report.analyzed_run import dataset_of
from scalescope.report.commands.jobs import command_name, job_name, units_of
from tests.builders.commands import command_launch, make_command
from tests.builders.results import make_configuration, make_trial


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --nproc-per-node={world_size} train.py --lr 1", "train.py"),
        ("python -u 'my scripts/pre train.py' --config c.py", "pre train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 -m package.train", "package.train"),
        ("torchrun -m package.train --lr 1", "package.train"),
        ("accelerate launch --num_processes 2 nlp.py", "nlp.py"),
        ("/opt/bin/pretrain --gpus 2", "pretrain"),
        ("python 'train.py", "python 'train.py"),
    ],
)
def test_a_command_is_named_by_its_script(command: str, name: str) -> None:
    assert command_name(command) == name


def test_other_jobs_are_named_by_their_workload() -> None:
    assert job_name(make_trial()) == "mlp"
    assert job_name(make_command()) == "train.py"


def test_a_command_is_its_own_data() -> None:
    (configuration,) = configurations([command_launch(make_command(), 0.1)])
    assert dataset_of(configuration) == "train.py"


def test_units_are_those_that_commands_count() -> None:
    (tokens,) = configurations([command_launch(make_command(observed_unit="tokens"), 0.1)])
    (unknown,) = configurations([command_launch(make_command(), 0.1, samples=None)])
    assert units_of([tokens]) == "tokens"
    assert units_of([tokens, unknown]) == "steps or tokens"
    assert units_of([make_configuration(make_trial(), 0.1)]) == units_of([]) == "samples"
