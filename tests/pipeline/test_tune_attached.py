"""`tune` with ranks of torchrun or srun: everything once without a verdict, or commands that take turns."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun, ExitCode
from scalescope.experiment.given import Given
from scalescope.experiment.machine import Machine, combined_machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, RanksLost
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapters.levers import chapter
from scalescope.results.run import load_run
from scalescope.results.run_record import is_unfinished
from scalescope.studies.request import Request
from scalescope.studies.slurm.job import run_on_slurm
from scalescope.studies.slurm.slurm_request import SlurmRun
from scalescope.studies.stored import present
from scalescope.studies.study import Report
from scalescope.studies.tuning.tune import TuneStudy
from tests.builders.studies import job_of, tune
from tests.builders.timed_launches import LAUNCH_S, Clock, Factors, campaign_clock
from tests.simulated.launcher import TWO_CORES, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of
from .test_slurm_runs import MadeUpSlurm
from .test_slurm_runs import made_up as made_up
from .tuning import (
    BF16,
    FUSED,
    HELPING,
    JIT,
    LEVERS,
    Outcomes,
    has,
    is_baseline,
    model_of,
    no_outcome,
    sentence,
    table,
    tuning_in,
    tuning_of,
    with_loss,
)

TRIED = ["precision bf16", "jit True", "comm_hook fp16", "comm_hook bf16", "fused_optimizer True"]
NOT_PROVEN = "but this is not a verdict: under torchrun or srun there is a single launch of each"
CORES = "ranks that are already running keep their cores; tune without torchrun or srun tries it"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made: Clock = campaign_clock(monkeypatch, Clock())
    return made


# Everything once


class Attached(FakeLauncher):
    """Two ranks that run already, on as many nodes as wanted."""

    repeatable = False

    def __init__(self, factors: Factors, outcomes: Outcomes = no_outcome, nodes: int = 1) -> None:
        super().__init__(model_of(factors), outcomes=outcomes)
        self._nodes = {f"node{number}": TWO_CORES for number in range(nodes)}

    def machine(self) -> Machine:
        return combined_machine(self._nodes, dict.fromkeys(self._nodes, 1))

    def nodes(self) -> dict[str, Machine]:
        return self._nodes

    def check(self, trial: Trial) -> None:
        if trial.settings["env"]:
            raise BadInput("--env cannot change ranks that run already")
        if trial.world_size > 2:
            raise CannotRun(f"{trial.world_size} ranks were asked for, 2 are running")


def tuned_once(
    factors: Factors,
    *levers: str,
    attached: Attached | None = None,
    watcher: RecordingWatcher | None = None,
    outcomes: Outcomes = no_outcome,
    **asked: Any,
) -> Report:
    made = attached or Attached(factors, outcomes)
    options = {"levers": levers or LEVERS, "most_ranks": 2}
    return tune(ask("tune", **asked), made, watcher or RecordingWatcher(), **options)


def rows(report: Report) -> dict[str, dict[str, str]]:
    return {row["settings"]: row for row in table(report, "Measured")}


def levers_of(report: Report) -> dict[str, dict[str, Any]]:
    return {lever["lever"]: lever for lever in tuning_of(report)["levers"]}


def test_everything_is_launched_once_and_nothing_is_claimed() -> None:
    watcher = RecordingWatcher()
    report = tuned_once(HELPING, watcher=watcher)
    assert report.exit_code == 0
    assert {(trial.world_size, launch) for trial, launch in watcher.launched} == {(2, 0)}
    assert len({trial.trial_id for trial, _ in watcher.launched}) == len(watcher.launched) == 1 + len(TRIED)
    tuning = tuning_of(report)
    assert list(levers_of(report)) == TRIED
    assert {(lever["status"], lever["launches"]) for lever in tuning["levers"]} == {("undecided", 1)}
    for row in tuning["combinations"]:
        assert (row["verdict"], row["ci95_speedup"], row["launches"]) == (None, None, 1)
        assert len(row["levers"]) < 2
    assert (tuning["winner"], tuning["recommended"], tuning["confirmed"]) == ([], False, None)
    assert tuning["finished"] is True
    speeds = {tuple(row["levers"]): row["speedup"] for row in tuning["combinations"]}
    assert speeds["precision bf16",] == pytest.approx(1 / 0.7, rel=0.03)
    assert not Path("run/tuned.yaml").exists()
    training = summary_of(report.path)["results"]["training"]
    assert {(row["launches"], row["ci95_samples_per_s"]) for row in training} == {(1, None)}
    shown = rows(report)
    assert (next(iter(shown)), list(shown)[-1]) == ("precision bf16", "fused_optimizer True")
    assert shown["current settings"]["speedup"] == "1.00×"
    assert {(row["verdict"], row["remark"]) for row in shown.values()} == {("—", "")}
    assert report.run is not None
    drawn_chapter = chapter(ReportInput(title="", analyzed_runs=(AnalyzedRun(report.run),)))
    assert drawn_chapter is not None
    (drawn,) = drawn_chapter.figures[0].panels[0].series
    assert drawn.label == "no verdict: at most one launch"
    assert drawn.x and not any(drawn.interval(index) for index in range(len(drawn.x)))


def test_the_sentence_says_so_and_how_to_know() -> None:
    watcher = RecordingWatcher()
    report = tuned_once(HELPING, watcher=watcher)
    assert watcher.notes[1:] == [
        "Under torchrun or srun each lever is launched once, so there are no intervals and no verdicts."
    ]
    assert watcher.verdicts == []
    assert sentence(report).startswith("precision bf16 was fastest (1.4")
    assert NOT_PROVEN in sentence(report)
    assert tuning_of(report)["verdict"] == report.headline == sentence(report)
    assert report.next_step is not None
    assert report.next_step.label == "without torchrun or srun"
    file = Path("run/experiment.yaml").resolve()
    assert report.next_step.command == f"scalescope tune {file} --repeats 5 --levers precision=bf16"
    none = tuned_once({(FUSED,): 1.5}, "fused_optimizer", output_dir="none")
    assert sentence(none).startswith(f"No lever was faster, {NOT_PROVEN}")
    assert none.next_step is None


def test_what_running_ranks_cannot_change_is_listed_and_not_tried() -> None:
    asked = ("precision", "pin_cores", "threads_per_rank=2", "env=NCCL_ALGO=Tree", "world_size=4")
    attached = Attached(HELPING)
    report = tuned_once(HELPING, *asked, attached=attached, dry_run=True)
    assert attached.launched == []
    assert list(Path().iterdir()) == []
    planned, left_out = report.sections
    assert planned.table is not None and planned.table.rows == (("precision bf16", "rounding"),)
    assert planned.lines[0].startswith("One launch each, so no verdict; a launch takes about")
    assert left_out.title == "Not tried"
    assert set(left_out.lines) >= {
        "env NCCL_ALGO=Tree: --env cannot change ranks that run already",
        "world_size 4: 4 ranks were asked for, 2 are running",
    }
    (fixed,) = [line for line in left_out.lines if line.endswith(f": {CORES}")]
    assert "pin_cores no" in fixed and "threads_per_rank 2" in fixed
    with pytest.raises(CannotRun, match="4 ranks were asked for, 2 are running"):
        tuned_once({}, "precision", world_size=4, dry_run=True)
    with pytest.raises(BadInput, match="no lever can be tried here; pin_cores no: ranks that are already"):
        tuned_once({}, "pin_cores")


def test_the_baseline_is_early_but_not_first_and_what_compiles_is_last() -> None:
    orders = []
    for seed in range(3):
        watcher = RecordingWatcher()
        asked = {"order_seed": seed, "output_dir": f"run{seed}"}
        report = tuned_once(HELPING, *LEVERS, "compile=default", watcher=watcher, **asked)
        order = [trial for trial, _ in watcher.launched]
        assert order[1].trial_id == tuning_of(report)["baseline"]
        assert order[-1].settings["compile"] == "default"
        orders.append(tuple(trial.trial_id for trial in order))
    assert len(set(orders)) > 1


def test_a_budget_that_ends_early_is_said_and_resumed_without_repeats(clock: Clock) -> None:
    report = tuned_once(HELPING, outcomes=clock.launch, budget="35s")
    assert len(load_run("run").results) == 3
    assert tuning_of(report)["finished"] is False
    missing = [name for name, lever in levers_of(report).items() if lever["status"] == "not measured"]
    assert len(missing) == 3
    assert all(any(name in line for line in report.sections[-1].lines) for name in missing)
    rest = tuned_once(HELPING, outcomes=clock.launch, budget="1h", resume=True)
    assert tuning_of(rest)["finished"] is True
    assert {(row["launches"], row["verdict"]) for row in tuning_of(rest)["combinations"]} == {(1, None)}
    assert len(load_run("run").results) == 1 + len(TRIED)


def test_a_lever_that_fails_or_changes_the_loss_says_so_and_is_not_named() -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if has(trial, JIT):
            return Outcome(status="failed", reason="it broke")
        return with_loss(5.0, BF16)(trial, launch)

    report = tuned_once(HELPING, outcomes=outcome)
    assert report.exit_code == 0
    (row,) = table(report, "Levers that failed")
    assert (row["lever"], row["result"]) == ("jit True", "failed: it broke")
    assert rows(report)["precision bf16"]["remark"] == "the loss differs"
    assert sentence(report).startswith("comm_hook fp16 was fastest (1.1")


def test_a_baseline_that_fails_is_an_error() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="it broke") if is_baseline(trial) else None

    report = tuned_once(HELPING, "precision", outcomes=fail)
    assert report.exit_code == 4
    assert sentence(report) == "The current settings could not be measured: failed"


def test_other_jobs_are_compared_with_one_rank_in_one_launch_of_each() -> None:
    report = tuned_once({}, "batch_size=512")
    ids = [result.trial_id for result in load_run("run").results]
    assert len(ids) == len(set(ids)) == 4  # both jobs on two ranks and on one
    jobs = {job["job"]: job for job in tuning_of(report)["other_jobs"]}
    assert set(jobs) == {"now", "batch_size 512"}
    assert all((job["ci95_speedup"], job["ci95_scaling"]) == (None, None) for job in jobs.values())
    (section,) = [section for section in report.sections if (section.title or "").startswith("Other jobs")]
    (line,) = section.lines
    assert (
        line
        == f"2 ranks now deliver {jobs['now']['scaling']:.2f}× the speed of one rank (one launch of each)."
    )
    assert jobs["now"]["scaling"] == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize(
    ("lever", "command"),
    [
        ("comm_hook=fp16", "scalescope train {file} --comm-hook none,fp16 {job}"),
        ("jit", "scalescope train {file} {job}"),
    ],
)
def test_on_several_nodes_a_job_of_slurm_gets_the_intervals(lever: str, command: str) -> None:
    name = lever.partition("=")[0]
    factors: Factors = {((name, "fp16" if name == "comm_hook" else True),): 0.5}
    report = tuned_once(factors, lever, attached=Attached(factors, nodes=2))
    job = "--repeats 5 --launcher slurm --nodes 2 --tasks-per-node 1"
    assert report.next_step is not None
    assert report.next_step.command == command.format(file=Path("run/experiment.yaml").resolve(), job=job)
    assert ("--jit" in report.next_step.label) == (lever == "jit")


def test_there_are_no_losses_to_verify() -> None:
    watcher = RecordingWatcher()
    tune(ask("tune", world_size=2), Attached(HELPING), watcher, levers=("precision",), verify_loss=200)
    assert len(load_run("run").results) == 2
    assert any(note.startswith("--verify-loss is left out") for note in watcher.notes)


# Commands that take turns, as the steps of a job: each makes the next launch

SEARCHED = ("precision", "jit", "fused_optimizer")


def _turn(request: Request, outcomes: Any, watcher: RecordingWatcher | None = None, **options: Any) -> Report:
    """One command, for which srun started two ranks."""
    launcher = FakeLauncher(model_of(HELPING), outcomes=outcomes)
    launcher.repeatable = False
    launcher.ranks = 2
    shared = dataclasses.replace(request, only_next=True)
    return tune(shared, launcher, watcher or RecordingWatcher(), **{"levers": SEARCHED, **options})


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


def test_commands_in_turn_make_the_same_search_as_a_single_command(clock: Clock) -> None:
    request = ask("tune", world_size=2, budget="1h", output_dir="whole")
    launcher = FakeLauncher(model_of(HELPING), outcomes=clock.launch)
    tune(request, launcher, RecordingWatcher(), levers=SEARCHED)
    codes = _turns(ask("tune", budget="1h"), clock.launch)
    whole, turns = load_run("whole").results, load_run("run").results
    assert [(result.key, result.stage) for result in turns] == [
        (result.key, result.stage) for result in whole
    ]
    assert codes == [0] * (len(turns) - 1) + [ExitCode.SEARCH_OVER]
    assert tuning_in() == tuning_in("whole")
    assert tuning_in()["winner"] == ["jit True", "precision bf16"]
    assert tuning_in()["confirmed"] is not None
    assert Path("run/tuned.yaml").is_file()
    before = tuning_in()
    assert _turn(ask("tune"), clock.launch).exit_code == ExitCode.SEARCH_OVER  # and launches nothing
    assert load_run("run").results == turns
    assert tuning_in() == before


def test_a_command_makes_one_launch_and_leaves_the_rest(clock: Clock) -> None:
    watcher = RecordingWatcher()
    report = _turn(ask("tune"), clock.launch, watcher)
    assert (report.exit_code, report.sections) == (0, ())
    assert len(watcher.launched) == len(load_run("run").results) == 1
    record = load_run("run").record
    assert (record.end, record.repeatable, record.attached_ranks) == (None, True, 2)
    assert is_unfinished(Path("run"))
    assert not Path("run/tuning.json").exists()


def test_all_commands_share_one_budget_and_their_starts_count(clock: Clock) -> None:
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


def test_a_later_submission_has_a_budget_of_its_own(clock: Clock) -> None:
    _turns(ask("tune", budget="25s"), clock.launch)
    assert len(load_run("run").results) == 2
    lines = [json.loads(line) for line in Path("run/trials.jsonl").read_text().splitlines()]
    earlier = {"started_at": "2026-01-01T10:00:00.000+00:00"}
    text = "".join(json.dumps({**line, **earlier}) + "\n" for line in lines)
    Path("run/trials.jsonl").write_text(text)
    again = dataclasses.replace(ask("tune", budget="25s"), budget_since="2026-01-01T11:00:00.000+00:00")
    _turns(again, clock.launch)
    assert len(load_run("run").results) == 4


@pytest.mark.parametrize("status", ["failed", "lost"])
def test_a_lever_that_fails_does_not_end_the_search(clock: Clock, status: Any) -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        clock.launch(trial, launch)
        if not trial.settings["jit"]:
            return None
        if status == "lost":
            raise RanksLost("rank 1 was lost")
        return Outcome(status=status, reason="it broke")

    codes = _turns(ask("tune", budget="1h"), outcome)
    assert codes.count(4) == (status == "lost")
    tuning = tuning_in()
    assert tuning["winner"] == ["precision bf16"] and tuning["recommended"] is True
    (jit,) = (lever for lever in tuning["levers"] if lever["lever"] == "jit True")
    assert jit["status"] == "failed"


def test_what_ranks_of_srun_cannot_be_is_left_out_also_when_the_run_is_read(clock: Clock) -> None:
    _turns(ask("tune"), clock.launch, levers=("precision", "link=1gbit", "pin_cores=no"))
    tuning = tuning_in()
    reasons = {lever["lever"]: lever["reason"] for lever in tuning["inapplicable"]}
    assert reasons["link 1gbit"] == "--link and --split-gpu cannot be used under torchrun or srun"
    assert "pin_cores no" in {lever["lever"] for lever in tuning["levers"]}  # new ranks may get other cores
    read = present(load_run("run"))
    assert json.loads(read.files["tuning.json"]()) == tuning


# As a job

_FLAGS = {"launcher": (Given("slurm", "--launcher"),), "nodes": (Given("2", "--nodes"),)}


def _job(**asked: Any) -> SlurmRun:
    return job_of(TuneStudy(levers=SEARCHED), ask("tune", **asked), _FLAGS, ())


def _steps(clock: Clock, most: int = 200) -> str:
    """What the steps of the job do meanwhile."""
    request = ask("tune", file=Path("run/slurm/request.yaml"))
    for _ in range(most):
        if _turn(request, clock.launch).exit_code == ExitCode.SEARCH_OVER:
            break
    return "RUNNING|None"


def test_a_job_is_collected_with_its_verdict(made_up: MadeUpSlurm, clock: Clock) -> None:
    made_up.states = ["PENDING|Resources", lambda: _steps(clock, 3), lambda: _steps(clock)]
    watcher = RecordingWatcher()
    run = _job(budget="1h")
    assert any(word.startswith("--budget-since=") for word in run.job.command)
    report = run_on_slurm(run, watcher)
    assert report.exit_code == 0
    assert report.headline is not None and report.headline.startswith("jit True + precision bf16 is faster")
    assert tuning_in()["recommended"] is True and Path("run/tuned.yaml").is_file()
    assert watcher.notes[0].startswith("Job 17: 2 ranks on 2 nodes, a step for each launch of the search.")
    assert report.run is not None and len(watcher.results) == len(report.run.results)
    assert watcher.verdicts[-1].best is not None  # the leaderboard follows the job
    assert not any("--resume" in note for note in watcher.notes)


def test_a_job_that_ends_before_its_search_is_readable_and_continued(
    made_up: MadeUpSlurm, clock: Clock
) -> None:
    made_up.states = [lambda: _steps(clock, 3), "NODE_FAIL|None"]
    watcher = RecordingWatcher()
    report = run_on_slurm(_job(budget="1h"), watcher)
    assert report.exit_code == ExitCode.WORKER_FAILED
    assert any("Job 17 ended (node fail) before its search was over: --resume" in n for n in watcher.notes)
    assert tuning_in()["finished"] is False
    again = ask("tune", resume=True)
    again = dataclasses.replace(again, flags={"output_dir": again.flags["output_dir"]})
    made_up.states = ["NODE_FAIL|None", lambda: _steps(clock)]
    resumed = job_of(TuneStudy(levers=SEARCHED), again, {}, ())
    assert run_on_slurm(resumed, RecordingWatcher()).exit_code == 0
    assert tuning_in()["recommended"] is True
