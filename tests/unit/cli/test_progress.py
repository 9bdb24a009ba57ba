"""The watcher: a live table on a terminal, a few plain lines everywhere else."""

import io
import sys
from collections.abc import Callable

import pytest

from scalescope.progress.terminal import TerminalWatcher
from scalescope.results.ranks import RankPlacement
from scalescope.studies.study import Interim, InterimRow
from scalescope.studies.watcher import Budget
from tests.builders.progress import ONE_RANK, TWO_RANKS, Clock, ended, launches_of

FAILED = f"ddp, 2 ranks, batch 10 [{TWO_RANKS.trial_id}]: failed: made up; log: x.log"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Makes standard error a terminal; called in the test itself, or pytest's own capturing replaces it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")

    def replace_stderr() -> Terminal:
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace_stderr


def measured(watcher: TerminalWatcher) -> None:
    with watcher:
        watcher.noted("a note")
        watcher.began(launches_of(ONE_RANK, TWO_RANKS, repeats=1), (), Budget(total_s=10.0, left_s=10.0))
        watcher.launching(ONE_RANK, 0)
        watcher.advanced(0.5)
        watcher.ended(ended(ONE_RANK))
        watcher.verdict(Interim("one rank is fast"))
        watcher.launching(TWO_RANKS, 0)
        watcher.ended(ended(TWO_RANKS, status="failed", reason="made up", log="x.log", notes=["look"]))
        watcher.ended(ended(TWO_RANKS, status="failed", reason="again", log="y.log"))  # said once
        watcher.verdict(Interim("two ranks failed"))


LINES = [
    "a note",
    "So far: one rank is fast",
    FAILED,
    "note: look",
    "So far: two ranks failed",
]


def test_without_a_terminal_there_are_notes_and_answers_so_far(
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured(TerminalWatcher(every_placement=False, verbose=False, clock=Clock()))
    out, err = capsys.readouterr()
    assert out.splitlines() == LINES
    assert err == ""


def test_on_a_dumb_terminal_there_is_no_table(
    attach: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = attach()
    monkeypatch.setenv("TERM", "dumb")
    measured(TerminalWatcher(every_placement=False, verbose=False, clock=Clock()))
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out.splitlines() == LINES


def test_on_a_terminal_the_table_is_drawn_and_taken_away(
    attach: Callable[[], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = attach()
    measured(TerminalWatcher(every_placement=False, verbose=False, clock=Clock()))
    assert capsys.readouterr().out.splitlines() == LINES  # to a file, which is no terminal
    shown = terminal.getvalue()
    assert "ddp, 2 ranks, batch 10" in shown
    assert "So far: two ranks failed" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0
    assert shown.rindex("\x1b[2K") > shown.rindex("So far:")  # erased at the end
    assert sys.stderr is terminal


def test_an_interruption_leaves_the_terminal_clean(attach: Callable[[], Terminal]) -> None:
    terminal = attach()
    with (
        pytest.raises(KeyboardInterrupt),
        TerminalWatcher(every_placement=False, verbose=False, clock=Clock()) as watcher,
    ):
        watcher.began(launches_of(ONE_RANK), (), None)
        watcher.launching(ONE_RANK, 0)
        raise KeyboardInterrupt
    shown = terminal.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.rindex("\x1b[2K") > shown.rindex("running")


def test_a_mistake_in_the_display_does_not_end_the_measurement(attach: Callable[[], Terminal]) -> None:
    terminal = attach()

    class Broken:
        rows = ("not a row",)
        fraction = 0.0

    with TerminalWatcher(every_placement=False, verbose=False, clock=Clock()) as watcher:
        watcher._progress = Broken()  # type: ignore[assignment]
    assert "Progress cannot be shown" in terminal.getvalue()


def test_placements_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalWatcher(every_placement=True, verbose=False, clock=Clock()) as watcher:
        for _ in range(2):
            watcher.placed([RankPlacement(rank=0, host="host", device_name="cpu", line="[Rank 0] here")])
    assert capsys.readouterr().out == "[Rank 0] here\n"


def searched(watcher: TerminalWatcher, clock: Clock) -> None:
    """A search with one launch per part; the best changes twice, and once only gets faster."""
    budget_s, bests = 180.0, [("batch 10", 1.0), ("batch 20", 1.31), ("batch 20", 1.4), ("batch 30", 7.9)]
    with watcher:
        watcher.began((), (), Budget(total_s=budget_s, left_s=budget_s))
        for number, (name, speedup) in enumerate(bests):
            left_s = budget_s - 25.0 * number
            watcher.began([(ONE_RANK, number)], (), Budget(total_s=budget_s, left_s=left_s))
            watcher.launching(ONE_RANK, number, label=f"trying {name}")
            clock.now += 25.0
            watcher.ended(ended(ONE_RANK, number))
            row = InterimRow(name=name, speedup=speedup, launches=1, is_best=speedup > 1.0)
            watcher.verdict(Interim(f"the fastest is {name}", (row,)))


def test_without_a_terminal_a_search_prints_each_new_best(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    searched(TerminalWatcher(every_placement=False, verbose=False, clock=clock), clock)
    assert capsys.readouterr() == (
        "best so far: batch 20, 1.31×, 2m 10s left\nbest so far: batch 30, 7.90×, 1m 20s left\n",
        "",
    )


def test_a_pipe_gets_each_new_best_also_where_the_leaderboard_is_on_a_terminal(
    attach: Callable[[], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal, clock = attach(), Clock()
    searched(TerminalWatcher(every_placement=False, verbose=False, clock=clock), clock)
    assert capsys.readouterr().out.count("best so far:") == 2
    assert "trying batch 30" in terminal.getvalue()
    assert "the fastest is" not in terminal.getvalue()


def test_a_terminal_shows_the_leaderboard_and_no_lines(
    attach: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, out, clock = attach(), Terminal(), Clock()
    monkeypatch.setattr(sys, "stdout", out)
    searched(TerminalWatcher(every_placement=False, verbose=False, clock=clock), clock)
    assert out.getvalue() == ""
    shown = terminal.getvalue()
    assert "7.90×" in shown
    assert "best so far:" not in shown
    assert shown.count("\x1b[?25l") == 1  # further parts do not start it again
