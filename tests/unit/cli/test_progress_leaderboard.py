"""The leaderboard of a search: data in, text out."""

import io

import pytest
from rich.console import Console

from scalescope.cli.progress_leaderboard import best_line
from scalescope.cli.progress_state import CampaignProgress
from scalescope.cli.progress_table import draw
from scalescope.studies.study import Interim, InterimRow
from scalescope.studies.watcher import Budget
from tests.builders.progress import ONE_RANK, Clock, ended

LONG = "precision bf16 + compile default + memory_format channels_last + bucket_cap_mb 100"
ROWS = (
    InterimRow(name="as it is", speedup=1.0, launches=2),
    InterimRow(name="precision bf16 + compile default", speedup=12.345, launches=3, is_best=True),
    InterimRow(name="jit True", speedup=None, launches=1),
)
MANY = tuple(InterimRow(name=f"{LONG} {n}", speedup=2.0 - n / 100, launches=10 + n) for n in range(20))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> CampaignProgress:
    """A launch has ended, the second runs, and 100 s of 3 minutes are over."""
    progress = CampaignProgress(clock)
    progress.begin((), (), Budget(total_s=180.0, left_s=180.0))
    progress.begin([(ONE_RANK, 0)], (), Budget(total_s=180.0, left_s=180.0))
    progress.launching(ONE_RANK, "trying as it is")
    clock.now += 100.0
    progress.ended(ended(ONE_RANK))
    progress.begin([(ONE_RANK, 1)], (), Budget(total_s=180.0, left_s=80.0))
    progress.launching(ONE_RANK, "trying precision bf16 + jit True")
    progress.fraction = 0.4
    return progress


def drawn(progress: CampaignProgress, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(draw(progress, width, height))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_best_is_first_then_what_is_tried_and_the_time(progress: CampaignProgress) -> None:
    progress.interim = Interim("not shown: the rows say it", ROWS)
    assert drawn(progress) == [
        "so far                            speedup  launches",
        "precision bf16 + compile default   12.35×         3  best",
        "as it is                            1.00×         2",
        "jit True                                —         1",
        "trying precision bf16 + jit True  40%",
        "1m 20s left of 3m, 1 launch done",
    ]


def test_before_the_first_answer_there_is_what_is_tried_and_the_time(progress: CampaignProgress) -> None:
    assert drawn(progress) == ["trying precision bf16 + jit True  40%", "1m 20s left of 3m, 1 launch done"]


def test_an_answer_without_rows_is_its_text(progress: CampaignProgress) -> None:
    progress.interim = Interim("nothing is faster yet")
    assert drawn(progress)[-1] == "So far: nothing is faster yet"


def test_between_two_launches_no_line_is_lost(progress: CampaignProgress) -> None:
    progress.interim = Interim("", ROWS)
    before = drawn(progress)
    progress.ended(ended(ONE_RANK, 1))
    assert drawn(progress) == [
        *before[:-2],
        "trying precision bf16 + jit True",
        "1m 20s left of 3m, 2 launches done",
    ]


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120, 200])
def test_names_are_cut_and_numbers_are_whole(progress: CampaignProgress, width: int) -> None:
    progress.interim = Interim("", (*ROWS, *MANY))
    progress.launching(ONE_RANK, f"trying {LONG} with {LONG} and {LONG}")
    heading, best, second, *_, activity, time = lines = drawn(progress, width)
    assert max(len(line) for line in lines) <= width
    assert len(lines) == 1 + 6 + 1 + 2
    assert heading.split() == ["so", "far", "speedup", "launches"]
    assert best.split()[-3:] == ["12.35×", "3", "best"]
    assert second.split()[-2:] == ["2.00×", "10"]
    assert ("…" in second) == (len(LONG) + 30 > width)
    assert activity.endswith("…  0%")
    assert time == "1m 20s left of 3m, 1 launch done"


@pytest.mark.parametrize("width", [10, 20, 30])
def test_a_very_narrow_terminal_keeps_name_and_speedup(progress: CampaignProgress, width: int) -> None:
    progress.interim = Interim("", MANY)
    lines = draw(progress, width, 24).plain.splitlines()
    assert max(len(line) for line in lines) <= width
    name, _, speedup = lines[1].rpartition("  ")
    assert (name.strip()[-1], speedup) == ("…", "2.00×")


@pytest.mark.parametrize(("height", "rows"), [(24, 6), (11, 6), (9, 4), (6, 1), (3, 1)])
def test_rows_that_do_not_fit_are_counted(progress: CampaignProgress, height: int, rows: int) -> None:
    progress.interim = Interim("", MANY)
    lines = drawn(progress, height=height)
    assert f"… and {len(MANY) - rows} more" in lines
    assert len(lines) == rows + 4


def test_the_best_is_marked_without_colours_too(progress: CampaignProgress) -> None:
    progress.interim = Interim("", ROWS)
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True, width=80)
    console.print(draw(progress, 80, 24))
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[32m" not in console.file.getvalue()
    assert drawn(progress)[1].endswith("best")


def test_without_a_budget_there_is_the_time_elapsed(clock: Clock) -> None:
    progress = CampaignProgress(clock)
    progress.begin((), (), None)
    progress.begin([(ONE_RANK, 0)], (), None)
    progress.launching(ONE_RANK, "trying as it is")
    clock.now += 3905.0
    assert drawn(progress)[-1] == "elapsed 1h 5m, 0 launches done"


def test_names_cannot_drive_the_terminal(progress: CampaignProgress) -> None:
    progress.interim = Interim("", (InterimRow(name="\x1b[31mred", speedup=1.0, launches=1),))
    progress.launching(ONE_RANK, "trying \x1b[31mred")
    assert "\x1b" not in draw(progress, 80, 24).plain


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
