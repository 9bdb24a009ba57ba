"""`tune` by commands that take turns on one folder, as the steps of a job do: each makes the next launch."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.errors import BadInput, ExitCode
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import Given
from scalescope.launch.fake import CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome, RanksLost
from scalescope.results.run import load_run
from scalescope.results.run_record import is_unfinished
from scalescope.studies import campaign
from scalescope.studies.request import Request
from scalescope.studies.slurm.job import run_on_slurm
from scalescope.studies.slurm.slurm_request import SlurmRun, prepare
from scalescope.studies.stored import present
from scalescope.studies.study import Report
from scalescope.studies.tuning.tune import TuneStudy
from tests.builders.studies import tune
from tests.pipeline.recording import RecordingWatcher, ask
from tests.pipeline.test_slurm_runs import MadeUpSlurm
from tests.pipeline.test_slurm_runs import made_up as made_up

BF16, JIT, FUSED = ("precision", "bf16"), ("jit", True), ("fused_optimizer", True)
HELPING = {(BF16,): 0.7, (JIT,): 0.8, (FUSED,): 1.5}
LEVERS = ("precision", "jit", "fused_optimizer")
MODEL = CostModel(launch_noise=0.004, factors=HELPING)
LAUNCH_S = 10.0


class _Clock:
    """A clock that only launches move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def launch(self, trial: Trial, launch: int) -> Outcome | None:
        self.now_s += LAUNCH_S
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def _ranks(outcomes: Any) -> FakeLauncher:
    """Two ranks that srun started for one command."""
    launcher = FakeLauncher(MODEL, outcomes=outcomes)
    launcher.repeatable = False
    launcher.ranks = 2
    return launcher


def _turn(request: Request, outcomes: Any, watcher: RecordingWatcher | None = None, **options: Any) -> Report:
    options = {"levers": LEVERS, **options}
    shared = dataclasses.replace(request, only_next=True)
    return tune(shared, _ranks(outcomes), watcher or RecordingWatcher(), **options)


def _turns(request: Request, outcomes: Any, **options: Any) -> list[int]:
    """Commands until one says that the search is over; their exit codes."""
    codes: list[int] = []
    while ExitCode.SEARCH_OVER not in codes:
        assert len(codes) < 200, "the search does not end"
        try:
            codes.append(_turn(request, outcomes, **options).exit_code)
        except RanksLost as error:
            codes.append(error.exit_code)
    return codes


def _tuning(path: str = "run") -> dict[str, Any]:
    tuning: dict[str, Any] = json.loads(Path(path, "tuning.json").read_text())
    return tuning


def test_commands_in_turn_make_the_same_search_as_a_single_command(clock: _Clock) -> None:
    request = ask("tune", world_size=2, budget="1h", output_dir="whole")
    launcher = FakeLauncher(MODEL, outcomes=clock.launch)
    tune(request, launcher, RecordingWatcher(), levers=LEVERS)
    codes = _turns(ask("tune", budget="1h"), clock.launch)
    whole, turns = load_run("whole").results, load_run("run").results
    assert [(result.key, result.stage) for result in turns] == [
        (result.key, result.stage) for result in whole
    ]
    assert codes == [0] * (len(turns) - 1) + [ExitCode.SEARCH_OVER]
    assert _tuning() == _tuning("whole")
    assert _tuning()["winner"] == ["jit True", "precision bf16"]
    assert _tuning()["confirmed"] is not None
    assert Path("run/tuned.yaml").is_file()


def test_a_command_makes_one_launch_and_leaves_the_rest(clock: _Clock) -> None:
    watcher = RecordingWatcher()
    report = _turn(ask("tune"), clock.launch, watcher)
    assert (report.exit_code, report.sections) == (0, ())
    assert len(watcher.launched) == len(load_run("run").results) == 1
    record = load_run("run").record
    assert (record.end, record.repeatable, record.attached_ranks) == (None, True, 2)
    assert is_unfinished(Path("run"))
    assert not Path("run/tuning.json").exists()


def test_a_command_after_the_last_launches_nothing(clock: _Clock) -> None:
    _turns(ask("tune"), clock.launch)
    before = _tuning()
    launches = len(load_run("run").results)
    assert _turn(ask("tune"), clock.launch).exit_code == ExitCode.SEARCH_OVER
    assert len(load_run("run").results) == launches
    assert _tuning() == before


def test_all_commands_share_one_budget_and_their_starts_count(clock: _Clock) -> None:
    start_s = 5.0
    for _ in range(50):
        request = dataclasses.replace(ask("tune", budget="100s"), started_s=clock.now_s)
        clock.now_s += start_s  # torch is loaded
        if _turn(request, clock.launch).exit_code == ExitCode.SEARCH_OVER:
            break
    results = load_run("run").results
    assert all(result.duration_s == start_s + LAUNCH_S for result in results)
    assert 2 <= len(results) <= 100 / (start_s + LAUNCH_S)
    assert load_run("run").record.end is not None


def test_a_later_submission_has_a_budget_of_its_own(clock: _Clock) -> None:
    _turns(ask("tune", budget="25s"), clock.launch)
    first = len(load_run("run").results)
    assert first == 2
    lines = [json.loads(line) for line in Path("run/trials.jsonl").read_text().splitlines()]
    earlier = {"started_at": "2026-01-01T10:00:00.000+00:00"}
    text = "".join(json.dumps({**line, **earlier}) + "\n" for line in lines)
    Path("run/trials.jsonl").write_text(text)
    again = dataclasses.replace(ask("tune", budget="25s"), budget_since="2026-01-01T11:00:00.000+00:00")
    _turns(again, clock.launch)
    assert len(load_run("run").results) == first + 2


@pytest.mark.parametrize("status", ["oom", "failed", "lost"])
def test_a_lever_that_fails_does_not_end_the_search(clock: _Clock, status: Any) -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        clock.launch(trial, launch)
        if not trial.settings["jit"]:
            return None
        if status == "lost":
            raise RanksLost("rank 1 was lost")
        return Outcome(status=status, reason="it broke")

    codes = _turns(ask("tune", budget="1h"), outcome)
    assert codes.count(4) == (status == "lost")
    tuning = _tuning()
    assert tuning["winner"] == ["precision bf16"] and tuning["recommended"] is True
    (jit,) = (lever for lever in tuning["levers"] if lever["lever"] == "jit True")
    assert jit["status"] == "failed"


def test_what_ranks_of_srun_cannot_be_is_left_out_also_when_the_run_is_read(clock: _Clock) -> None:
    levers = ("precision", "link=1gbit", "pin_cores=no")
    _turns(ask("tune"), clock.launch, levers=levers)
    tuning = _tuning()
    reasons = {lever["lever"]: lever["reason"] for lever in tuning["inapplicable"]}
    assert reasons["link 1gbit"] == "--link and --split-gpu cannot be used under torchrun or srun"
    assert "pin_cores no" in {lever["lever"] for lever in tuning["levers"]}  # new ranks may get other cores
    read = present(load_run("run"))
    assert json.loads(read.files["tuning.json"]()) == tuning


def test_commands_that_take_turns_must_name_their_folder() -> None:
    request = dataclasses.replace(ask("tune"), flags={})
    with pytest.raises(BadInput, match="--only-launch requires --output-dir"):
        _turn(request, lambda trial, launch: None)


# As a job

_FLAGS = {"launcher": (Given("slurm", "--launcher"),), "nodes": (Given("2", "--nodes"),)}


def _job(**asked: Any) -> SlurmRun:
    return prepare(TuneStudy(levers=LEVERS), ask("tune", **asked), _FLAGS, ())


def _steps(clock: _Clock, most: int = 200) -> str:
    """What the steps of the job do meanwhile."""
    request = ask("tune", file=Path("run/slurm/request.yaml"))
    for _ in range(most):
        if _turn(request, clock.launch).exit_code == ExitCode.SEARCH_OVER:
            break
    return "RUNNING|None"


def test_a_job_is_collected_with_its_verdict(made_up: MadeUpSlurm, clock: _Clock) -> None:
    made_up.states = ["PENDING|Resources", lambda: _steps(clock, 3), lambda: _steps(clock)]
    watcher = RecordingWatcher()
    run = _job(budget="1h")
    assert any(word.startswith("--budget-since=") for word in run.job.command)
    report = run_on_slurm(run, watcher)
    assert report.exit_code == 0
    assert report.headline is not None and report.headline.startswith("jit True + precision bf16 is faster")
    assert _tuning()["recommended"] is True and Path("run/tuned.yaml").is_file()
    assert watcher.notes[0].startswith("Job 17: 2 ranks on 2 nodes, a step for each launch of the search.")
    assert report.run is not None and len(watcher.results) == len(report.run.results)
    assert watcher.verdicts[-1].best is not None  # the leaderboard follows the job
    assert not any("--resume" in note for note in watcher.notes)


def test_a_job_that_ends_before_its_search_is_readable_and_continued(
    made_up: MadeUpSlurm, clock: _Clock
) -> None:
    made_up.states = [lambda: _steps(clock, 3), "NODE_FAIL|None"]
    watcher = RecordingWatcher()
    report = run_on_slurm(_job(budget="1h"), watcher)
    assert report.exit_code == ExitCode.WORKER_FAILED
    assert any("Job 17 ended (node fail) before its search was over: --resume" in n for n in watcher.notes)
    assert _tuning()["finished"] is False
    again = ask("tune", resume=True)
    again = dataclasses.replace(again, flags={"output_dir": again.flags["output_dir"]})
    made_up.states = ["NODE_FAIL|None", lambda: _steps(clock)]
    resumed = prepare(TuneStudy(levers=LEVERS), again, {}, ())
    assert run_on_slurm(resumed, RecordingWatcher()).exit_code == 0
    assert _tuning()["recommended"] is True
