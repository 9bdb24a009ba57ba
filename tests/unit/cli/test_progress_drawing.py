"""The live table of a plan and the leaderboard of a search: data in, text out."""

import io

import pytest
from rich.console import Console

from scalescope.progress.leaderboard import best_line
from scalescope.progress.state import CampaignProgress
from scalescope.progress.table import draw
from scalescope.studies.study import Interim, InterimRow
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
        "trial                                     done  latest  per second  state",
        "ddp, 1 rank, batch 10                      1/3  100 ms         100  waiting",
        "ddp, 2 ranks, batch 10                     0/3       —           —  running 40%",
        "ddp, 2 ranks, batch 10, no communication   0/3       —           —  waiting",
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


@pytest.mark.parametrize("width", [20, 60, 200])
def test_no_line_is_wider_than_the_terminal(progress: CampaignProgress, width: int) -> None:
    progress.interim = Interim("as far as it is known " * 20)
    lines = draw(progress, width, 24).plain.splitlines()
    assert all(len(line) <= max(width, 30) for line in lines)
    assert drawn(progress, max(width, 30))[-1].endswith("…")


@pytest.mark.parametrize(("height", "rows"), [(24, 15), (20, 14), (8, 2)])
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


LONG = "precision bf16 + compile default + memory_format channels_last + bucket_cap_mb 100"
ROWS = (
    InterimRow(name="as it is", speedup=1.0, launches=2),
    InterimRow(name="precision bf16 + compile default", speedup=12.345, launches=3, is_best=True),
    InterimRow(name="jit True", speedup=None, launches=1),
)
MANY = tuple(InterimRow(name=f"{LONG} {n}", speedup=2.0 - n / 100, launches=10 + n) for n in range(20))


@pytest.fixture
def search(clock: Clock) -> CampaignProgress:
    """A launch has ended, the second runs, and 100 s of 3 minutes are over."""
    search = CampaignProgress(clock)
    search.begin((), (), Budget(total_s=180.0, left_s=180.0))
    search.begin([(ONE_RANK, 0)], (), Budget(total_s=180.0, left_s=180.0))
    search.launching(ONE_RANK, "trying as it is")
    clock.now += 100.0
    search.ended(ended(ONE_RANK))
    search.begin([(ONE_RANK, 1)], (), Budget(total_s=180.0, left_s=80.0))
    search.launching(ONE_RANK, "trying precision bf16 + jit True")
    search.fraction = 0.4
    return search


def test_the_best_is_first_then_what_is_tried_and_the_time(search: CampaignProgress) -> None:
    search.interim = Interim("not shown: the rows say it", ROWS)
    assert drawn(search) == [
        "so far                            speedup  launches",
        "precision bf16 + compile default   12.35×         3  best",
        "as it is                            1.00×         2",
        "jit True                                —         1",
        "trying precision bf16 + jit True  40%",
        "1m 20s left of 3m, 1 launch done",
    ]


def test_before_the_first_answer_there_is_what_is_tried_and_the_time(search: CampaignProgress) -> None:
    assert drawn(search) == ["trying precision bf16 + jit True  40%", "1m 20s left of 3m, 1 launch done"]


def test_an_answer_without_rows_is_its_text(search: CampaignProgress) -> None:
    search.interim = Interim("nothing is faster yet")
    assert drawn(search)[-1] == "So far: nothing is faster yet"


def test_between_two_launches_no_line_is_lost(search: CampaignProgress) -> None:
    search.interim = Interim("", ROWS)
    before = drawn(search)
    search.ended(ended(ONE_RANK, 1))
    assert drawn(search) == [
        *before[:-2],
        "trying precision bf16 + jit True",
        "1m 20s left of 3m, 2 launches done",
    ]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_names_are_cut_and_numbers_are_whole(search: CampaignProgress, width: int) -> None:
    search.interim = Interim("", (*ROWS, *MANY))
    search.launching(ONE_RANK, f"trying {LONG} with {LONG} and {LONG}")
    heading, best, second, *_, activity, time = lines = drawn(search, width)
    assert max(len(line) for line in lines) <= width
    assert len(lines) == 1 + 6 + 1 + 2
    assert heading.split() == ["so", "far", "speedup", "launches"]
    assert best.split()[-3:] == ["12.35×", "3", "best"]
    assert second.split()[-2:] == ["2.00×", "10"]
    assert ("…" in second) == (len(LONG) + 30 > width)
    assert activity.endswith("…  0%")
    assert time == "1m 20s left of 3m, 1 launch done"


@pytest.mark.parametrize("width", [10, 30])
def test_a_very_narrow_terminal_keeps_name_and_speedup(search: CampaignProgress, width: int) -> None:
    search.interim = Interim("", MANY)
    lines = draw(search, width, 24).plain.splitlines()
    assert max(len(line) for line in lines) <= width
    name, _, speedup = lines[1].rpartition("  ")
    assert (name.strip()[-1], speedup) == ("…", "2.00×")


@pytest.mark.parametrize(("height", "rows"), [(11, 6), (9, 4), (3, 1)])
def test_rows_of_the_leaderboard_that_do_not_fit_are_counted(
    search: CampaignProgress, height: int, rows: int
) -> None:
    search.interim = Interim("", MANY)
    lines = drawn(search, height=height)
    assert f"… and {len(MANY) - rows} more" in lines
    assert len(lines) == rows + 4


def test_the_best_is_marked_without_colours_too(search: CampaignProgress) -> None:
    search.interim = Interim("", ROWS)
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True, width=80)
    console.print(draw(search, 80, 24))
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[32m" not in console.file.getvalue()
    assert drawn(search)[1].endswith("best")


def test_without_a_budget_there_is_the_time_elapsed(clock: Clock) -> None:
    search = CampaignProgress(clock)
    search.begin((), (), None)
    search.begin([(ONE_RANK, 0)], (), None)
    search.launching(ONE_RANK, "trying as it is")
    clock.now += 3905.0
    assert drawn(search)[-1] == "elapsed 1h 5m, 0 launches done"


def test_names_of_the_leaderboard_cannot_drive_the_terminal(search: CampaignProgress) -> None:
    search.interim = Interim("", (InterimRow(name="\x1b[31mred", speedup=1.0, launches=1),))
    search.launching(ONE_RANK, "trying \x1b[31mred")
    assert "\x1b" not in draw(search, 80, 24).plain


@pytest.mark.parametrize(
    ("speedup", "left_s", "line"),
    [
        (7.9, 80.0, "best so far: jit True, 7.90×, 1m 20s left"),
        (None, 59.6, "best so far: jit True, 1m left"),
        (1.0, 0.2, "best so far: jit True, 1.00×, 0s left"),
        (1.0, None, "best so far: jit True, 1.00×"),
    ],
)
def test_the_line_of_the_best(speedup: float | None, left_s: float | None, line: str) -> None:
    best = InterimRow(name="jit True", speedup=speedup, launches=1, is_best=True)
    budget = None if left_s is None else Budget(total_s=600.0, left_s=left_s)
    assert best_line(best, budget) == line
