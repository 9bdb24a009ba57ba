"""The live table: data in, text out."""

import io

import pytest
from rich.console import Console

from scalescope.cli.progress_state import CampaignProgress
from scalescope.cli.progress_table import draw
from scalescope.studies.study import Interim
from scalescope.studies.watcher import Budget
from tests.builders.progress import ONE_RANK, SILENT, TWO_RANKS, Clock, ended, launches_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> CampaignProgress:
    """One trial has ended a launch, one runs, one waits."""
    progress = CampaignProgress(clock)
    progress.begin(launches_of(ONE_RANK, TWO_RANKS, SILENT), [ended(ONE_RANK)], None)
    progress.launching(TWO_RANKS)
    progress.fraction = 0.4
    clock.now += 65.0
    return progress


def drawn(progress: CampaignProgress, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(draw(progress, width, height))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_table_has_a_row_per_trial_and_the_time_below(progress: CampaignProgress) -> None:
    progress.interim = Interim("2 ranks deliver 1.8×")
    assert drawn(progress) == [
        "trial                                     done  latest  samples/s  state",
        "ddp, 1 rank, batch 10                      1/3  100 ms        100  waiting",
        "ddp, 2 ranks, batch 10                     0/3       —          —  running 40%",
        "ddp, 2 ranks, batch 10, no communication   0/3       —          —  waiting",
        "1 of 9 launches, elapsed 1:05, about 1:52 left",
        "So far: 2 ranks deliver 1.8×",
    ]


def test_a_narrow_terminal_has_no_samples_and_labels_on_several_lines(progress: CampaignProgress) -> None:
    lines = drawn(progress, width=60)
    assert lines[0].split() == ["trial", "done", "latest", "state"]
    assert lines[3:5] == [
        "ddp, 2 ranks, batch 10, no          0/3       —  waiting",
        "  communication",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 72, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(progress: CampaignProgress, width: int) -> None:
    progress.interim = Interim("as far as it is known " * 20)
    lines = draw(progress, width, 24).plain.splitlines()
    assert all(len(line) <= max(width, 30) for line in lines)
    assert drawn(progress, max(width, 30))[-1].endswith("…")


@pytest.mark.parametrize(("height", "rows"), [(60, 15), (24, 15), (20, 14), (12, 6), (8, 2)])
def test_rows_that_do_not_fit_are_counted(clock: Clock, height: int, rows: int) -> None:
    progress = CampaignProgress(clock)
    trials = [ONE_RANK.replace(batch_size=batch) for batch in range(10, 50)]
    progress.begin(launches_of(*trials), (), None)
    progress.launching(trials[-1])
    progress.interim = Interim("a verdict of two lines " * 5)
    lines = drawn(progress, height=height)
    assert len(lines) < height
    assert f"… and {40 - rows} more" in lines
    assert len([line for line in lines if line.startswith("ddp, 1 rank")]) == rows
    assert "running" in lines[rows]  # the running one is always there
    assert "batch 10 " in lines[1]


def test_only_training_has_samples(clock: Clock) -> None:
    progress = CampaignProgress(clock)
    settings = {"benchmark": "comm", "world_size": 2, "dtype": "float32", "device": "cpu"}
    progress.begin([(type(ONE_RANK)(settings=settings), 0)], (), None)
    assert drawn(progress)[:2] == [
        "trial                   done  latest  state",
        "comm, 2 ranks, float32   0/1       —  waiting",
    ]


def test_a_failure_is_marked(progress: CampaignProgress) -> None:
    progress.ended(ended(TWO_RANKS, status="failed", reason="made up"))
    line = next(line for line in draw(progress, 80, 24).split() if line.plain.endswith("failed"))
    assert line.spans[0].style == "red"


@pytest.mark.parametrize(
    ("budget_s", "seconds", "text"),
    [
        (None, 3700.0, "Preparing, elapsed 1:01:40"),
        (30.0, 8.0, "0 of 3 launches, elapsed 0:08, at most 0:22 left (budget)"),
    ],
)
def test_the_line_of_time(clock: Clock, budget_s: float | None, seconds: float, text: str) -> None:
    progress = CampaignProgress(clock)
    if budget_s is not None:
        progress.begin(launches_of(ONE_RANK), (), Budget(total_s=60.0, left_s=budget_s))
    clock.now += seconds
    assert drawn(progress)[-1] == text


def test_a_study_that_decides_on_the_way_has_no_total(clock: Clock) -> None:
    progress = CampaignProgress(clock)
    progress.begin((), (), None)
    progress.begin([(ONE_RANK, 0)], (), None)
    progress.launching(ONE_RANK)
    progress.ended(ended(ONE_RANK))
    assert drawn(progress)[-1].startswith("1 launch done, elapsed 0:00")


def test_names_cannot_drive_the_terminal(progress: CampaignProgress) -> None:
    progress.interim = Interim("\x1b[31mred")
    assert drawn(progress)[-1] == "So far: \\x1b[31mred"
