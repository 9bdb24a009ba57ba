"""The supervisor, with ranks that are only played: blame, limits, and an end that always comes."""

import dataclasses
import json
import signal
import time
from pathlib import Path

import pytest

from scalescope.errors import Interrupted
from scalescope.launch.local import logs
from scalescope.launch.local import supervisor as module
from scalescope.launch.local.logs import MemoryUse
from scalescope.launch.local.processes import SpawnFailed
from scalescope.launch.local.rank_watch import RankWatch, SupervisedLaunch, SupervisedRank
from scalescope.launch.local.supervisor import Supervisor
from scalescope.launch.probing import MemoryKills
from scalescope.results.ranks import Beat, Heartbeats, Phase, RankStage
from tests.builders.commands import Recorder
from tests.builders.launching import usual_limits
from tests.unit.launch.local.test_memory_use import write_process

_NOBODY = 2**22 + 1  # above the largest process number: signals to it reach nothing


class _PlayedProcess:
    """A rank process that ends with a given code, or never."""

    pid = _NOBODY

    def __init__(self, code: int | None) -> None:
        self._code = code

    def poll(self) -> int | None:
        return self._code


class _Stage:
    """Ranks in the positions a test gives them."""

    def __init__(self, directory: Path, codes: list[int | None]) -> None:
        self.directory = directory
        self.beats = Heartbeats(directory / "beats", len(codes), create=True)
        self.ranks = [
            SupervisedRank(
                process=_PlayedProcess(code),
                rank_file=directory / f"{rank}.json",
                log=directory / f"{rank}.log",
            )
            for rank, code in enumerate(codes)
        ]

    def at(self, rank: int, stage: RankStage, begun: int, phase: Phase = Phase.INPUT) -> None:
        self.beats.write(rank, Beat(max(0, begun - 1), begun, stage, phase, 0.0))

    def wrote(self, rank: int, message: str | None, at_s: float = 0.0) -> None:
        record: dict[str, object] = {"rank": rank, "state": "done"}
        if message is not None:
            record = {"rank": rank, "state": "failed"}
            record["error"] = {"message": message, "out_of_memory": False, "at_monotonic_s": at_s}
        (self.directory / f"{rank}.json").write_text(json.dumps(record))

    def supervisor(
        self,
        deadline: float | None = None,
        *,
        memory: MemoryUse | None = None,
        kills: MemoryKills | None = None,
        **limits: float,
    ) -> Supervisor:
        launch = self._launch(deadline, memory or MemoryUse(root=self.directory), **limits)
        if kills is not None:
            launch = dataclasses.replace(launch, kills=kills)
        return Supervisor(launch, Recorder(), time.sleep)

    def watch(self) -> RankWatch:
        return RankWatch(self._launch(None, MemoryUse(root=self.directory)), Recorder())

    def _launch(self, deadline: float | None, memory: MemoryUse, **limits: float) -> SupervisedLaunch:
        return SupervisedLaunch(
            ranks=self.ranks,
            beats=self.beats,
            limits=usual_limits(**limits),
            steps=8,
            deadline=deadline,
            memory=memory,
        )


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SETTLE_S", "_TERM_GRACE_S", "_KILL_LIMIT_S", "_POLL_S"):
        monkeypatch.setattr(module, name, 0.01)


def test_ranks_that_finish_are_ok_however_they_end(tmp_path: Path) -> None:
    play = _Stage(tmp_path, [0, -11])
    play.wrote(0, None)
    play.wrote(1, None)
    outcome = play.supervisor().run()
    assert outcome.status == "ok"
    assert [record.rank for record in outcome.records] == [0, 1]


@pytest.mark.parametrize(
    ("counted", "status"),
    [(("sys/fs/cgroup/memory.events",), "oom"), (("proc/vmstat",), "failed"), ((), "failed")],
)
def test_a_rank_that_the_kernel_ended_for_want_of_memory_is_named_by_its_counters(
    counted: tuple[str, ...], status: str, tmp_path: Path
) -> None:
    counters = ("proc/self/cgroup", "proc/vmstat", "sys/fs/cgroup/memory.events")
    for name, text in zip(counters, ("0::/\n", "oom_kill 0\n", "oom_kill 0\n"), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    play = _Stage(tmp_path, [-9])
    supervisor = play.supervisor(kills=MemoryKills(tmp_path))
    for name in counted:
        (tmp_path / name).write_text("oom_kill 1\n")
    outcome = supervisor.run()
    assert outcome.status == status
    assert outcome.reason is not None
    assert ("out of memory" in outcome.reason) is bool(counted)


@pytest.mark.parametrize(
    ("code", "limited", "status"), [(1, True, "oom"), (1, False, "failed"), (-9, True, "failed")]
)
def test_a_rank_that_a_library_ends_under_a_memory_limit_is_out_of_memory(
    tmp_path: Path, code: int, limited: bool, status: str
) -> None:
    play = _Stage(tmp_path, [code])
    play.at(0, RankStage.STEADY, 1)
    memory = MemoryUse(1 << 20 if limited else None, tmp_path)
    outcome = play.supervisor(memory=memory).run()
    assert outcome.status == status


def test_a_rank_that_crashed_at_its_memory_limit_is_out_of_memory_with_the_figures(tmp_path: Path) -> None:
    play = _Stage(tmp_path, [None])
    play.at(0, RankStage.STEADY, 4)
    memory = MemoryUse(256 << 20, tmp_path)
    write_process(tmp_path, _NOBODY, data_kb=(100 + 250) << 10, limit=(100 + 256) << 20)
    memory.sample([_NOBODY])
    play.ranks[0].exit_code = -signal.SIGSEGV
    outcome = play.supervisor(memory=memory).run()
    assert outcome.status == "oom"
    assert outcome.reason == (
        "rank 0 was killed by SIGSEGV at step 3: out of memory, "
        "it had allocated 250 MiB of the 256 MiB of --memory-limit"
    )


def test_a_rank_that_is_done_but_never_exits_is_ended_and_its_result_kept(tmp_path: Path) -> None:
    play = _Stage(tmp_path, [None, 0])
    for rank in (0, 1):
        play.at(rank, RankStage.DONE, 8)
        play.wrote(rank, None)
    outcome = play.supervisor(teardown_timeout=0.1).run()
    assert outcome.status == "ok"
    assert [record.rank for record in outcome.records] == [0, 1]
    assert outcome.notes == ["rank 0 did not exit within 0.1 s and was killed"]


class _LostProcess(_PlayedProcess):
    """A rank of a zygote that was killed."""

    def poll(self) -> int | None:
        raise SpawnFailed("ended")


@pytest.mark.parametrize("finished", [True, False])
def test_ranks_that_finished_before_their_zygote_ended_are_kept(tmp_path: Path, finished: bool) -> None:
    play = _Stage(tmp_path, [0, 0])
    for rank in (0, 1)[: None if finished else 1]:
        play.wrote(rank, None)
    play.ranks[1].process = _LostProcess(None)
    if finished:
        outcome = play.supervisor().run()
        assert (outcome.status, len(outcome.records)) == ("ok", 2)
    else:
        with pytest.raises(SpawnFailed):
            play.supervisor().run()


_LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:1"
_INPUT, _FORWARD, _BACKWARD = Phase.INPUT, Phase.FORWARD, Phase.BACKWARD


@pytest.mark.parametrize(
    ("codes", "positions", "errors", "found", "reason"),
    [
        # An echo of another rank's end is not blamed, though it is behind and the first to report.
        ([1, -9], [(5, _INPUT), (6, _INPUT)], [_LOST], ("failed", 1, 5), "was killed by SIGKILL at step 5"),
        # Of two errors the one with less progress is.
        ([1, 1], [(6, _BACKWARD), (6, _FORWARD)], ["E: a", "E: b"],
         ("failed", 1, 5), "failed at step 5: E: b"),
        # It recorded its error, and never exits.
        ([None] * 2, [(6, _INPUT)] * 2, [None, "E: b"], ("failed", 1, 5), "failed at step 5: E: b"),
        ([0], [], [], ("failed", 0, None), "exited before its first step with code 0 and without a result"),
        # Silence is a hang of those furthest behind.
        ([None] * 3, [(6, _BACKWARD), (6, _INPUT), (6, _INPUT)], [],
         ("hang", None, 5), "s 1, 2 hang at step 5: no progress for 0 s"),
    ],
)  # fmt: skip
def test_the_rank_that_explains_the_end_is_named(
    tmp_path: Path,
    codes: list[int | None],
    positions: list[tuple[int, Phase]],
    errors: list[str | None],
    found: tuple[str, int | None, int | None],
    reason: str,
) -> None:
    play = _Stage(tmp_path, codes)
    for rank, (begun, phase) in enumerate(positions):
        play.at(rank, RankStage.STEADY, begun, phase)
    for rank, message in enumerate(errors):
        if message is not None:
            play.wrote(rank, message, at_s=float(rank))
    outcome = play.supervisor(stall_timeout=0.1).run()
    assert (outcome.status, outcome.rank, outcome.step) == found
    named = "rank" if outcome.rank is None else f"rank {outcome.rank} "
    assert outcome.reason is not None and outcome.reason.startswith(f"{named}{reason}")


def test_ranks_that_measure_are_ended_when_the_budget_is_spent(tmp_path: Path) -> None:
    play = _Stage(tmp_path, [None, None])
    play.at(0, RankStage.STEADY, 6)
    play.at(1, RankStage.TEARDOWN, 8)
    outcome = play.supervisor(deadline=time.monotonic()).run()
    assert (outcome.status, outcome.stopped_by, outcome.records) == ("interrupted", "budget", [])


def test_ranks_that_have_finished_may_leave_after_the_budget_is_spent(tmp_path: Path) -> None:
    play = _Stage(tmp_path, [None, 0])
    for rank in (0, 1):
        play.at(rank, RankStage.TEARDOWN, 8)
        play.wrote(rank, None)
    outcome = play.supervisor(deadline=time.monotonic(), teardown_timeout=0.1).run()
    assert (outcome.status, len(outcome.records)) == ("ok", 2)


def _goes_on(play: _Stage) -> None:
    """A rank whose window is stored, and that tries something else."""
    play.at(0, RankStage.STEADY, 9)
    (play.directory / "0.json").write_text(json.dumps({"rank": 0, "state": "done", "continues": True}))


@pytest.mark.parametrize("code", [None, 1, -9])
def test_a_window_that_is_stored_outlives_what_follows_on_it(tmp_path: Path, code: int | None) -> None:
    play = _Stage(tmp_path, [code])
    _goes_on(play)
    outcome = play.supervisor(deadline=time.monotonic()).run()
    assert (outcome.status, len(outcome.records)) == ("ok", 1)
    assert bool(outcome.notes) == (code is None)


def test_a_signal_after_a_window_is_stored_ends_the_run_and_keeps_it(tmp_path: Path) -> None:
    play = _Stage(tmp_path, [None])
    _goes_on(play)
    supervisor = play.supervisor()

    def interrupted(seconds: float) -> None:
        supervisor._wait = time.sleep
        raise Interrupted(signal.SIGTERM)

    supervisor._wait = interrupted
    outcome = supervisor.run()
    assert (outcome.status, outcome.signum, len(outcome.records)) == ("ok", signal.SIGTERM, 1)


def test_a_slow_warm_up_extends_the_stall_limit(tmp_path: Path) -> None:
    play = _Stage(tmp_path, [None])
    play.beats.write(0, Beat(3, 4, RankStage.STEADY, Phase.INPUT, 5.0))
    rank = play.ranks[0]
    watch = play.watch()
    rank.stage = RankStage.STEADY
    assert watch.time_limit_s(rank) == 100.0
    play.beats.write(0, Beat(3, 4, RankStage.STEADY, Phase.INPUT, 0.1))
    assert watch.time_limit_s(rank) == 30.0


def test_a_rank_that_outlasts_sigkill_does_not_hold_the_launcher_and_its_log_is_capped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LARGEST_BYTES", 100)
    play = _Stage(tmp_path, [None])
    play.ranks[0].log.write_bytes(b"x" * 1000)
    play.supervisor().end_all()
    assert play.ranks[0].log.stat().st_size == 50
