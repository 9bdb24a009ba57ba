"""`tune` as ranks of torchrun or srun: everything once, shown without a verdict."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.machine import Machine
from scalescope.experiment.machines.nodes import combined_machine
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapters.levers import chapter
from scalescope.results.run import load_run
from scalescope.studies import campaign
from scalescope.studies.study import Report
from tests.builders.studies import tune

from .recording import RecordingWatcher, ask, summary_of
from .tuning import (
    BF16,
    FUSED,
    HELPING,
    JIT,
    LEVERS,
    Factors,
    Outcomes,
    has,
    is_baseline,
    no_outcome,
    sentence,
    table,
    tuning_of,
    with_loss,
)

TRIED = ["precision bf16", "jit True", "comm_hook fp16", "comm_hook bf16", "fused_optimizer True"]
NOT_PROVEN = "but this is not a verdict: under torchrun or srun there is a single launch of each"
CORES = "threads of ranks that run already keep their cores; tune without torchrun or srun tries it"


class Attached(FakeLauncher):
    """Two ranks that run already, on as many nodes as wanted."""

    repeatable = False

    def __init__(self, factors: Factors, outcomes: Outcomes = no_outcome, nodes: int = 1) -> None:
        super().__init__(CostModel(launch_noise=0.004, factors=factors), outcomes=outcomes)
        self._nodes = {f"node{number}": TWO_CORES for number in range(nodes)}

    def machine(self) -> Machine:
        return combined_machine(self._nodes, dict.fromkeys(self._nodes, 1))

    def nodes(self) -> dict[str, Machine]:
        return self._nodes

    def check(self, trial: Trial) -> None:
        if trial.settings["env"]:
            raise BadInput("--env cannot change ranks that run already")
        if trial.settings["link"]:
            raise BadInput("--link needs ranks of our own")
        if trial.world_size > 2:
            raise CannotRun(f"{trial.world_size} ranks were asked for, 2 are running")


def tuned(
    factors: Factors,
    *levers: str,
    attached: Attached | None = None,
    watcher: RecordingWatcher | None = None,
    outcomes: Outcomes = no_outcome,
    **asked: Any,
) -> Report:
    options = {"levers": levers or LEVERS, "combine": asked.pop("combine", True)}
    made = attached or Attached(factors, outcomes)
    return tune(ask("tune", **asked), made, watcher or RecordingWatcher(), most_ranks=2, **options)


def rows(report: Report) -> dict[str, dict[str, str]]:
    return {row["settings"]: row for row in table(report, "Measured")}


def levers_of(report: Report) -> dict[str, dict[str, Any]]:
    return {lever["lever"]: lever for lever in tuning_of(report)["levers"]}


def test_everything_is_launched_once_and_nothing_is_claimed() -> None:
    watcher = RecordingWatcher()
    report = tuned(HELPING, watcher=watcher)
    assert report.exit_code == 0
    assert {(trial.world_size, launch) for trial, launch in watcher.launched} == {(2, 0)}
    assert len({trial.trial_id for trial, _ in watcher.launched}) == len(watcher.launched) == 1 + len(TRIED)
    tuning = tuning_of(report)
    assert list(levers_of(report)) == TRIED
    assert {(lever["status"], lever["launches"]) for lever in tuning["levers"]} == {("undecided", 1)}
    for row in tuning["combinations"]:
        assert (row["verdict"], row["ci95_speedup"], row["launches"]) == (None, None, 1)
    assert (tuning["winner"], tuning["recommended"], tuning["confirmed"]) == ([], False, None)
    assert tuning["finished"] is True
    speeds = {tuple(row["levers"]): row["speedup"] for row in tuning["combinations"]}
    assert speeds["precision bf16",] == pytest.approx(1 / 0.7, rel=0.03)
    assert not Path("run/tuned.yaml").exists()
    training = summary_of(report.path)["results"]["training"]
    assert {(row["launches"], row["ci95_samples_per_s"]) for row in training} == {(1, None)}


def test_the_sentence_says_so_and_how_to_know() -> None:
    watcher = RecordingWatcher()
    report = tuned(HELPING, watcher=watcher)
    assert watcher.notes[1:] == [
        "Under torchrun or srun every lever is launched once, so there is no interval and no verdict."
    ]
    assert watcher.verdicts == []
    assert sentence(report).startswith("precision bf16 was fastest (1.4")
    assert NOT_PROVEN in sentence(report)
    assert "scalescope tune on one machine without torchrun or srun" in sentence(report)
    assert tuning_of(report)["verdict"] == report.headline == sentence(report)
    assert report.next_step is not None
    assert report.next_step.label == "without torchrun or srun"
    file = Path("run/experiment.yaml").resolve()
    assert report.next_step.command == f"scalescope tune {file} --repeats 5 --levers precision=bf16"
    shown = " ".join(
        [*sentence(report).split(), *(cell for row in rows(report).values() for cell in row.values())]
    )
    assert not {"faster", "slower", "confirmed", "inconclusive", "recommended"} & set(shown.split())


def test_the_table_has_ratios_without_intervals() -> None:
    report = tuned(HELPING)
    assert "intervals" not in (report.sections[1].title or "")
    shown_rows = rows(report)
    assert next(iter(shown_rows)) == "precision bf16"
    assert list(shown_rows)[-1] == "fused_optimizer True"
    assert shown_rows["current settings"]["speedup"] == "1.00×"
    for row in shown_rows.values():
        assert (row["verdict"], row["remark"]) == ("—", "")
        assert row["speedup"].endswith("×")


def test_nothing_that_looks_faster_is_said_as_such() -> None:
    report = tuned({(FUSED,): 1.5}, "fused_optimizer")
    assert sentence(report).startswith(f"No lever was faster, {NOT_PROVEN}")
    assert report.next_step is None


def test_what_running_ranks_cannot_change_is_listed_and_not_tried() -> None:
    asked = (
        "precision",
        "pin_cores",
        "threads_per_rank=2",
        "env=NCCL_ALGO=Tree",
        "link=1gbit",
        "world_size=4",
    )
    report = tuned(HELPING, *asked)
    assert list(levers_of(report)) == ["precision bf16"]
    reasons = {lever["lever"]: lever["reason"] for lever in tuning_of(report)["inapplicable"]}
    assert reasons["pin_cores no"] == reasons["threads_per_rank 2"] == CORES
    assert reasons["env NCCL_ALGO=Tree"] == "--env cannot change ranks that run already"
    assert reasons["link 1gbit"] == "--link needs ranks of our own"
    assert reasons["world_size 4"] == "4 ranks were asked for, 2 are running"
    assert report.sections[-1].title == "Not tried"


def test_a_baseline_that_running_ranks_cannot_be_is_refused() -> None:
    with pytest.raises(CannotRun, match="4 ranks were asked for, 2 are running"):
        tuned({}, "precision", world_size=4, dry_run=True)
    with pytest.raises(BadInput, match="nothing is left to try here; pin_cores no: threads of ranks"):
        tuned({}, "pin_cores")


def test_levers_are_not_combined() -> None:
    attached = Attached(HELPING)
    report = tuned(HELPING, attached=attached, combine=True)
    assert all(len(row["levers"]) < 2 for row in tuning_of(report)["combinations"])


def test_a_dry_run_says_that_it_would_be_one_launch() -> None:
    attached = Attached({})
    report = tuned({}, "precision", "pin_cores", attached=attached, dry_run=True)
    assert attached.launched == []
    assert list(Path().iterdir()) == []
    planned, left_out = report.sections
    assert planned.table is not None and planned.table.rows == (("precision bf16", "rounding"),)
    assert planned.lines[0].startswith("One launch each, so no verdict; a launch takes about")
    assert f"pin_cores no: {CORES}" in left_out.lines


def test_the_baseline_is_early_but_not_first_and_what_compiles_is_last() -> None:
    for seed in range(5):
        watcher = RecordingWatcher()
        report = tuned(
            HELPING, *LEVERS, "compile=default", watcher=watcher, order_seed=seed, output_dir=f"run{seed}"
        )
        order = [trial for trial, _ in watcher.launched]
        assert order[1].trial_id == tuning_of(report)["baseline"]
        assert order[-1].settings["compile"] == "default"
    assert len({tuple(launch["trial_id"] for launch in _launched(f"run{seed}")) for seed in range(5)}) > 1


def _launched(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path, "trials.jsonl").read_text().splitlines()]


def test_a_budget_that_ends_early_is_said_and_resumed_without_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]

    def take_ten_seconds(trial: Trial, launch: int) -> None:
        now[0] += 10.0

    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: now[0]))
    report = tuned(HELPING, outcomes=take_ten_seconds, budget="35s")
    assert len(load_run("run").results) == 3
    assert tuning_of(report)["finished"] is False
    assert report.sections[0].lines[-1].startswith("The search is not over; --resume")
    missing = [name for name, lever in levers_of(report).items() if lever["status"] == "not measured"]
    assert len(missing) == 3
    assert all(any(name in line for line in report.sections[-1].lines) for name in missing)
    rest = tuned(HELPING, outcomes=take_ten_seconds, budget="1h", resume=True)
    assert tuning_of(rest)["finished"] is True
    assert {(row["launches"], row["verdict"]) for row in tuning_of(rest)["combinations"]} == {(1, None)}
    assert len(_launched("run")) == 1 + len(TRIED)


def test_a_lever_that_fails_or_changes_the_loss_says_so_and_is_not_named() -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if has(trial, JIT):
            return Outcome(status="failed", reason="it broke")
        return with_loss(5.0, BF16)(trial, launch)

    report = tuned(HELPING, outcomes=outcome)
    assert report.exit_code == 0
    (row,) = table(report, "Levers that failed")
    assert (row["lever"], row["result"]) == ("jit True", "failed: it broke")
    assert rows(report)["precision bf16"]["remark"] == "the loss differs"
    assert sentence(report).startswith("comm_hook fp16 was fastest (1.1")


def test_a_baseline_that_fails_is_an_error() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="it broke") if is_baseline(trial) else None

    report = tuned(HELPING, "precision", outcomes=fail)
    assert report.exit_code == 4
    assert sentence(report) == "The current settings could not be measured: failed: it broke"


def test_other_jobs_are_compared_with_one_rank_in_one_launch_of_each() -> None:
    report = tuned({}, "batch_size=512")
    ids = [launch["trial_id"] for launch in _launched("run")]
    assert len(ids) == len(set(ids)) == 4  # both jobs on two ranks and on one
    jobs = {job["job"]: job for job in tuning_of(report)["other_jobs"]}
    assert set(jobs) == {"now", "batch_size 512"}
    assert all((job["ci95_speedup"], job["ci95_scaling"]) == (None, None) for job in jobs.values())
    (section,) = [section for section in report.sections if (section.title or "").startswith("Other jobs")]
    assert section.lines == ("2 ranks now deliver 2.00× the speed of one rank (one launch of each).",)
    assert sentence(report).startswith("No lever was faster")


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
    report = tuned(factors, lever, attached=Attached(factors, nodes=2))
    job = "--repeats 5 --launcher slurm --nodes 2 --tasks-per-node 1"
    assert report.next_step is not None
    assert report.next_step.command == command.format(file=Path("run/experiment.yaml").resolve(), job=job)
    assert ("--jit" in report.next_step.label) == (lever == "jit")


def test_the_page_draws_them_without_intervals() -> None:
    report = tuned(HELPING)
    assert report.run is not None
    made = chapter(ReportInput(title="", analyzed_runs=(AnalyzedRun(report.run),)))
    assert made is not None
    (figure,) = made.figures
    (drawn,) = figure.panels[0].series
    assert drawn.label == "no verdict: single launch"
    assert drawn.x and not any(drawn.interval(index) for index in range(len(drawn.x)))
