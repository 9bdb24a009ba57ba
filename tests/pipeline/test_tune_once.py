"""`tune` as ranks of torchrun or srun: everything once, shown without a verdict."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.machine import Machine
from scalescope.experiment.nodes import combined_machine
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapters.levers import chapter
from scalescope.results.run import load_run
from scalescope.studies import campaign
from scalescope.studies.study import Report
from tests.verbs import tune

from .recording import RecordingWatcher, ask, summary_of
from .test_tune_study import (
    BF16,
    FUSED,
    HELPING,
    LEVERS,
    Clock,
    Factors,
    Outcomes,
    sentence,
    spoilt,
    tuning_of,
)

TRIED = ["precision bf16", "jit True", "comm_hook fp16", "comm_hook bf16", "fused_optimizer True"]
NOT_PROVEN = "but this is not a verdict: under torchrun or srun there is a single launch of each"
CORES = "threads of ranks that run already keep their cores; tune without torchrun or srun tries it"


class Attached(FakeLauncher):
    """Two ranks that run already, on as many nodes as wanted."""

    repeatable = False

    def __init__(
        self, factors: Factors, outcomes: Outcomes = lambda trial, launch: None, nodes: int = 1
    ) -> None:
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
    outcomes: Outcomes = lambda trial, launch: None,
    **asked: Any,
) -> Report:
    options = {"levers": levers or LEVERS}
    made = attached or Attached(factors, outcomes)
    return tune(ask("tune", **asked), made, watcher or RecordingWatcher(), most_ranks=2, **options)


def rows(report: Report) -> dict[str, dict[str, str]]:
    table = report.sections[1].table
    assert table is not None
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_everything_is_launched_once_and_nothing_is_claimed() -> None:
    watcher = RecordingWatcher()
    report = tuned(HELPING, watcher=watcher)
    assert report.exit_code == 0
    assert {(trial.world_size, launch) for trial, launch in watcher.launched} == {(2, 0)}
    assert len({trial.trial_id for trial, _ in watcher.launched}) == len(watcher.launched) == 1 + len(TRIED)
    tuning = tuning_of(report)
    assert [lever["lever"] for lever in tuning["tried"]] == TRIED
    for lever in tuning["tried"]:
        assert (lever["verdict"], lever["ci95_speedup"], lever["p_value"]) == (None, None, None)
        assert (lever["launches"], lever["dropped"], lever["smallest_effect_seen"]) == (1, False, None)
    assert (tuning["winner"], tuning["recommended"], tuning["confirmed"]) == ([], False, None)
    assert (tuning["finished"], tuning["combined"]) == (True, [])
    speeds = {lever["lever"]: lever["speedup"] for lever in tuning["tried"]}
    assert speeds["precision bf16"] == pytest.approx(1 / 0.7, rel=0.03)
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
    assert not {"faster", "slower", "confirmed", "inconclusive"} & set(shown.split())


def test_the_table_has_ratios_and_the_words_for_one_launch() -> None:
    report = tuned(HELPING)
    assert (report.sections[1].title or "").endswith("one launch each, so no intervals")
    shown_rows = rows(report)
    assert next(iter(shown_rows)) == "precision bf16"
    assert list(shown_rows)[-1] == "fused_optimizer True"
    for row in shown_rows.values():
        assert (row["verdict"], row["remark"]) == ("—", "one launch: no verdict")
        assert row["speedup"].endswith("×")
        assert "detectable change" not in row


def test_nothing_that_looks_faster_is_said_as_such() -> None:
    report = tuned({(FUSED,): 1.5}, "fused_optimizer")
    assert sentence(report).startswith(f"No lever was faster, {NOT_PROVEN}")
    assert report.next_step is None


def test_what_running_ranks_cannot_change_is_listed_and_not_tried() -> None:
    asked = ("precision", "pin_cores", "threads_per_rank", "env=NCCL_ALGO=Tree", "link=1gbit", "world_size=4")
    report = tuned(HELPING, *asked)
    assert [lever["lever"] for lever in tuning_of(report)["tried"]] == ["precision bf16"]
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


@pytest.mark.parametrize("dry_run", [True, False])
def test_combinations_need_launches_of_their_own(dry_run: bool) -> None:
    attached = Attached({})
    options = {"levers": LEVERS, "combine": True}
    with pytest.raises(BadInput, match=r"^--combine cannot be used under torchrun or srun"):
        tune(ask("tune", dry_run=dry_run), attached, RecordingWatcher(), **options)
    assert attached.launched == []


def test_a_dry_run_says_that_it_would_be_one_launch() -> None:
    attached = Attached({})
    report = tuned({}, "precision", "pin_cores", attached=attached, dry_run=True)
    assert attached.launched == []
    assert list(Path().iterdir()) == []
    planned, left_out = report.sections
    assert planned.table is not None and planned.table.rows == (("precision bf16", "rounding"),)
    assert planned.lines[0].startswith("One launch each, so no verdict, about")
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
    clock = Clock()
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=clock.monotonic))
    report = tuned(HELPING, outcomes=clock.launch, budget="35s")
    assert len(load_run("run").results) == 3
    assert sentence(report).endswith("The search ended early; continue with --resume.")
    assert [row["remark"] for row in rows(report).values()][-3:] == ["not measured"] * 3
    rest = tuned(HELPING, outcomes=clock.launch, budget="1h", resume=True)
    assert tuning_of(rest)["finished"] is True
    assert {(lever["launches"], lever["verdict"]) for lever in tuning_of(rest)["tried"]} == {(1, None)}
    assert len(_launched("run")) == 1 + len(TRIED)


def test_a_lever_that_fails_or_spoils_the_loss_says_so_and_is_not_named() -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if trial.settings["jit"]:
            return Outcome(status="failed", reason="it broke")
        return spoilt(5.0, BF16)(trial, launch)

    report = tuned(HELPING, outcomes=outcome)
    assert report.exit_code == 0
    shown_rows = rows(report)
    assert (shown_rows["jit True"]["verdict"], shown_rows["jit True"]["remark"]) == (
        "failed",
        "failed: it broke",
    )
    assert shown_rows["precision bf16"]["remark"] == "one launch: no verdict; the loss differs"
    assert sentence(report).startswith("comm_hook fp16 was fastest (1.1")


def test_a_baseline_that_fails_is_no_answer() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        plain = trial.settings["precision"] == "fp32"
        return Outcome(status="failed", reason="it broke") if plain else None

    report = tuned(HELPING, "precision", outcomes=fail)
    assert report.exit_code == 4
    assert sentence(report) == "The baseline could not be measured: failed: it broke"


def test_other_jobs_are_held_against_one_rank_in_one_launch_of_each() -> None:
    report = tuned({}, "batch_size=512")
    ids = [launch["trial_id"] for launch in _launched("run")]
    assert len(ids) == len(set(ids)) == 4  # both jobs on two ranks and on one
    assert set(tuning_of(report)["scaling"]) == {"now", "batch_size 512"}
    assert all(estimate["ci95"] is None for estimate in tuning_of(report)["scaling"].values())
    assert (
        report.sections[0].lines[1] == "2 ranks now deliver 2.00× the speed of one rank (one launch of each)."
    )
    assert sentence(report).startswith("No lever was faster")
    (row,) = rows(report).values()
    assert row["remark"] == "one launch: no verdict; changes the job: compared per sample"


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
