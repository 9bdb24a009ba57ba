"""The summaries people read, letter by letter."""

from scalescope.report.scaling.sections import scaling_sections
from scalescope.report.training.sections import training_sections
from tests.builders.known_runs import make_run, make_trials

from .conftest import Golden, Render


def test_train_summary(render: Render, golden: Golden) -> None:
    run = make_run(make_trials(world_size=2, batch_size=64, threads_per_rank=1))
    golden("train_summary.txt", render(training_sections(run)))


def test_train_summary_of_one_launch(render: Render, golden: Golden) -> None:
    run = make_run(make_trials(world_size=1, batch_size=64, threads_per_rank=1), launches=1)
    golden("train_summary_one_launch.txt", render(training_sections(run)))


def test_weak_scaling(render: Render, golden: Golden) -> None:
    trials = make_trials(explained=True, world_size=[1, 2, 4], batch_size=[32, 256])
    golden("scaling_weak.txt", render(scaling_sections(make_run(trials)), verbose=True))


def test_strong_scaling_without_one_rank(render: Render, golden: Golden) -> None:
    trials = make_trials(explained=True, world_size=[2, 4], global_batch_size=256)
    golden("scaling_strong_relative.txt", render(scaling_sections(make_run(trials))))


def test_weak_scaling_on_a_usual_terminal(render: Render, golden: Golden) -> None:
    trials = make_trials(explained=True, world_size=[1, 2, 4], batch_size=[32, 256])
    golden("scaling_weak_80_columns.txt", render(scaling_sections(make_run(trials)), width=80))
