"""How far a campaign is: rows and the time left, from facts and a clock that is set by hand."""

from collections.abc import Callable

import pytest

from scalescope.experiment.trial import Trial
from scalescope.progress.state import CampaignProgress, TimeLeft
from scalescope.studies.study import Interim, InterimRow
from scalescope.studies.watcher import Budget
from tests.builders.progress import ONE_RANK, SILENT, TWO_RANKS, Clock, ended, launches_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> CampaignProgress:
    return CampaignProgress(clock)


@pytest.fixture
def launch(progress: CampaignProgress, clock: Clock) -> Callable[..., None]:
    """Make a launch with the given duration."""

    def make(trial: Trial, number: int = 0, seconds: float = 2.0, **changes: str) -> None:
        progress.launching(trial)
        clock.now += seconds
        progress.ended(ended(trial, number, seconds, **changes))

    return make


def table(progress: CampaignProgress) -> list[tuple[str, int, int, str]]:
    return [(row.label, row.done, row.planned, row.state) for row in progress.rows]


def test_rows_are_in_reading_order_whatever_the_order_of_launches(progress: CampaignProgress) -> None:
    progress.begin(launches_of(SILENT, TWO_RANKS, ONE_RANK), (), None)
    assert table(progress) == [
        ("ddp, 1 rank, batch 10", 0, 3, "waiting"),
        ("ddp, 2 ranks, batch 10", 0, 3, "waiting"),
        ("ddp, 2 ranks, batch 10, no communication", 0, 3, "waiting"),
    ]


def test_rows_follow_their_launches(progress: CampaignProgress, launch: Callable[..., None]) -> None:
    progress.begin(launches_of(ONE_RANK, TWO_RANKS, repeats=2), (), None)
    launch(ONE_RANK)
    progress.launching(TWO_RANKS)
    assert [row[1:] for row in table(progress)] == [(1, 2, "waiting"), (0, 2, "running")]
    progress.ended(ended(TWO_RANKS))
    launch(ONE_RANK, 1)
    launch(TWO_RANKS, 1, status="failed", reason="made up")
    assert [row[1:] for row in table(progress)] == [(2, 2, "ok"), (2, 2, "failed")]
    assert [row.is_expected for row in progress.rows] == [True, False]
    assert [len(row.figures) for row in progress.rows] == [2, 1]
    assert progress.launches == (4, 4)


def test_a_result_that_is_held_back_leaves_no_row_running(progress: CampaignProgress) -> None:
    progress.begin(launches_of(ONE_RANK, TWO_RANKS), (), None)
    progress.launching(ONE_RANK)
    progress.launching(TWO_RANKS)
    assert [row.state for row in progress.rows] == ["waiting", "running"]


def test_a_resumed_run_begins_with_what_is_done(progress: CampaignProgress) -> None:
    progress.begin(
        launches_of(ONE_RANK, TWO_RANKS), [ended(ONE_RANK), ended(ONE_RANK, 1), ended(TWO_RANKS, 7)], None
    )
    assert [(row.done, row.planned, len(row.figures)) for row in progress.rows] == [(2, 3, 2), (0, 3, 1)]


def test_results_that_come_before_the_plan_count_once(progress: CampaignProgress) -> None:
    progress.launching(ONE_RANK)
    progress.ended(ended(ONE_RANK))
    progress.begin(launches_of(ONE_RANK), [ended(ONE_RANK)], None)
    assert [(row.done, row.planned, len(row.figures)) for row in progress.rows] == [(1, 3, 1)]


def test_a_further_part_of_the_plan_adds_to_it(
    progress: CampaignProgress, launch: Callable[..., None]
) -> None:
    progress.begin(launches_of(TWO_RANKS, repeats=1), (), None)
    launch(TWO_RANKS)
    progress.begin([(TWO_RANKS, 1), (ONE_RANK, 0)], (), None)
    assert [row[:3] for row in table(progress)] == [
        ("ddp, 2 ranks, batch 10", 1, 2),
        ("ddp, 1 rank, batch 10", 0, 1),
    ]


def test_equal_labels_are_distinguished(progress: CampaignProgress) -> None:
    progress.begin([(TWO_RANKS, 0), (TWO_RANKS.replace(bucket_cap_mb=5.0), 0)], (), None)
    labels = {row.label for row in progress.rows}
    assert "ddp, 2 ranks, batch 10, bucket_cap_mb 5.0" in labels
    assert len(labels) == 2


def test_nothing_is_known_of_the_time_before_a_launch_has_ended(progress: CampaignProgress) -> None:
    progress.begin(launches_of(ONE_RANK), (), None)
    assert progress.time_left() is None


def test_the_time_left_is_that_of_the_same_trials_or_else_of_others(
    progress: CampaignProgress, clock: Clock, launch: Callable[..., None]
) -> None:
    progress.begin(launches_of(ONE_RANK, TWO_RANKS), (), None)
    launch(ONE_RANK, seconds=2.0)
    assert progress.time_left() == TimeLeft(seconds=5 * 2.0, bound="about")
    launch(TWO_RANKS, seconds=4.0)
    assert progress.time_left() == TimeLeft(seconds=2 * 2.0 + 2 * 4.0, bound="about")
    progress.launching(TWO_RANKS)
    clock.now += 3.0
    assert progress.time_left() == TimeLeft(seconds=2 * 2.0 + 4.0 + 1.0, bound="about")
    assert progress.elapsed_s == 9.0


def test_a_launch_that_takes_longer_than_others_is_judged_by_its_steps(
    progress: CampaignProgress, clock: Clock, launch: Callable[..., None]
) -> None:
    progress.begin([(ONE_RANK, 0), (TWO_RANKS, 0)], (), None)
    launch(ONE_RANK, seconds=2.0)
    progress.launching(TWO_RANKS)
    clock.now += 6.0
    assert progress.time_left() == TimeLeft(seconds=0.0, bound="about")
    progress.fraction = 0.25
    assert progress.time_left() == TimeLeft(seconds=18.0, bound="about")


def test_a_trial_that_is_given_up_takes_no_more_time(
    progress: CampaignProgress, launch: Callable[..., None]
) -> None:
    progress.begin(launches_of(ONE_RANK, TWO_RANKS), (), None)
    launch(ONE_RANK, seconds=2.0)
    launch(TWO_RANKS, seconds=5.0, status="oom", reason="made up")
    assert progress.time_left() == TimeLeft(seconds=2 * 2.0, bound="about")


def test_a_budget_bounds_the_time_left(
    progress: CampaignProgress, clock: Clock, launch: Callable[..., None]
) -> None:
    progress.begin(launches_of(ONE_RANK), (), Budget(total_s=8.0, left_s=5.0))
    assert progress.time_left() == TimeLeft(seconds=5.0, bound="at most")
    launch(ONE_RANK, seconds=2.0)
    assert progress.time_left() == TimeLeft(seconds=3.0, bound="at most")
    launch(ONE_RANK, 1, seconds=1.0)
    assert progress.time_left() == TimeLeft(seconds=1.5, bound="about")
    clock.now += 10.0
    assert progress.time_left() == TimeLeft(seconds=0.0, bound="at most")


def test_a_study_that_decides_on_the_way_has_a_bound_only(
    progress: CampaignProgress, launch: Callable[..., None]
) -> None:
    progress.begin((), (), None)
    progress.begin([(ONE_RANK, 0), (TWO_RANKS, 0)], (), None)
    launch(ONE_RANK, seconds=2.0)
    assert progress.time_left() == TimeLeft(seconds=2.0, bound="at least")
    progress.begin([(ONE_RANK, 1)], (), Budget(total_s=9.0, left_s=9.0))
    assert progress.time_left() == TimeLeft(seconds=9.0, bound="at most")


def test_the_clock_and_the_budget_go_on_over_further_parts(
    progress: CampaignProgress, clock: Clock, launch: Callable[..., None]
) -> None:
    progress.begin((), (), Budget(total_s=180.0, left_s=175.0))
    for number in range(3):
        progress.begin([(ONE_RANK, number)], (), Budget(total_s=180.0, left_s=175.0 - 2.0 * number))
        launch(ONE_RANK, number, seconds=2.0)
    assert progress.launches == (3, None)
    assert progress.elapsed_s == 6.0
    assert progress.budget() == Budget(total_s=180.0, left_s=169.0)
    clock.now += 200.0
    assert progress.budget() == Budget(total_s=180.0, left_s=0.0)


def test_a_launch_is_called_what_its_study_calls_it_or_else_by_its_trial(progress: CampaignProgress) -> None:
    progress.begin(launches_of(ONE_RANK, TWO_RANKS), (), None)
    assert progress.activity is None
    progress.launching(ONE_RANK, "trying one rank")
    assert progress.activity == "trying one rank"
    progress.ended(ended(ONE_RANK))
    assert progress.activity == "trying one rank"  # until the next one begins
    progress.launching(TWO_RANKS)
    assert progress.activity == "measuring ddp, 2 ranks, batch 10"


def test_a_plan_is_no_search_and_stays_none_with_a_text(progress: CampaignProgress) -> None:
    progress.begin(launches_of(ONE_RANK), (), None)
    progress.launching(ONE_RANK, "with a label")
    progress.interim = Interim("a text")
    assert not progress.is_search


def test_a_search_has_rows_or_labels_of_launches_decided_on_the_way(clock: Clock) -> None:
    by_rows, by_label = CampaignProgress(clock), CampaignProgress(clock)
    by_rows.begin(launches_of(ONE_RANK), (), None)
    by_rows.interim = Interim("a text", (InterimRow(name="a", speedup=None, launches=1),))
    by_label.begin((), (), None)
    by_label.begin([(ONE_RANK, 0)], (), None)
    assert not by_label.is_search
    by_label.launching(ONE_RANK, "trying it")
    by_label.launching(ONE_RANK)
    assert by_rows.is_search and by_label.is_search


def test_the_best_comes_first_then_the_fastest_and_the_unknown_last() -> None:
    speedups = {"slow": 0.8, "unknown": None, "not confirmed": 2.0, "confirmed": 1.5}
    rows = [
        InterimRow(name=name, speedup=speedup, launches=1, is_best=name == "confirmed")
        for name, speedup in speedups.items()
    ]
    interim = Interim("", tuple(rows))
    assert [row.name for row in interim.ranking] == ["confirmed", "not confirmed", "slow", "unknown"]
    assert interim.best is rows[3]
    assert Interim("", tuple(rows[:3])).best is None
