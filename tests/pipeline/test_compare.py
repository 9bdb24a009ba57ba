"""Runs of known cost models compared: the gate, the refusals, and runs side by side."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.run_spread import DEFAULT_SPREAD
from scalescope.analysis.verdicts import NO_SPREAD
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.report.render.markdown import markdown
from scalescope.studies.comparison.compare import ComparisonReport, compare, show_side_by_side
from tests.builders.studies import memory, scale, train
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, ask_benchmark

CALM = CostModel(launch_noise=0.004, exposed_comm_s={2: 0.004})
SLOWER = dataclasses.replace(CALM, factors={(("benchmark", "train"),): 1.08})
NOISY = dataclasses.replace(CALM, launch_noise=0.08)


def measured(name: str, model: CostModel = CALM, launcher: FakeLauncher | None = None, **asked: Any) -> Path:
    """A run of two batches, five launches each."""
    request = ask("train", output_dir=name, **{"batch_size": [16, 64], "repeats": 5, **asked})
    report = train(request, launcher or FakeLauncher(model), RecordingWatcher())
    assert report.path is not None
    return report.path


def verdicts(report: ComparisonReport) -> set[str]:
    return {trial["verdict"] for trial in report.data["trials"]}


def test_the_gate_is_missed_by_what_is_slower_and_on_request_by_what_is_inconclusive() -> None:
    calm, slower = measured("a"), measured("b", SLOWER)
    itself = compare(calm, calm, fail_inconclusive=True)
    assert (itself.exit_code, verdicts(itself)) == (0, {"no difference"})
    assert itself.data["differences"] == []
    report = compare(calm, slower)
    assert (report.exit_code, verdicts(report)) == (8, {"slower"})
    assert [trial["change"] for trial in report.data["trials"]] == pytest.approx([1 / 1.08 - 1] * 2, abs=0.01)
    assert report.data["run_spread"] == {"deviation": DEFAULT_SPREAD.deviation, "runs": None}
    assert compare(calm, slower, 0.10).exit_code == 0
    noisy = measured("c", NOISY), measured("d", NOISY)
    report = compare(*noisy, spread=NO_SPREAD)
    assert (report.exit_code, verdicts(report)) == (0, {"inconclusive"})
    assert compare(*noisy, spread=NO_SPREAD, fail_inconclusive=True).exit_code == 6
    assert compare(calm, slower, fail_inconclusive=True).exit_code == 8  # a regression goes first


def with_code(path: Path, sha256: str) -> Path:
    """The run as if its ranks had recorded the file of their workload."""
    lines = [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        line["ranks"][0]["counters"] |= {"workload_file": "/x/mine.py", "workload_sha256": sha256}
    (path / "trials.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_runs_of_a_changed_workload_are_compared_and_the_change_is_reported() -> None:
    Path("mine.py").write_text("def build():\n    pass\n")
    asked: dict[str, Any] = {"workload": "mine.py:build"}
    first, same = with_code(measured("a", **asked), "1" * 64), with_code(measured("b", **asked), "1" * 64)
    changed, silent = with_code(measured("c", **asked), "2" * 64), measured("d", **asked)
    assert compare(first, same).data["differences"] == []
    assert compare(first, silent).data["differences"] == []  # of an earlier version
    report = compare(first, changed)
    assert verdicts(report) == {"no difference"}
    assert report.data["differences"] == [
        {"kind": "code", "name": "mine.py", "base": f"SHA-256 {'1' * 12}", "new": f"SHA-256 {'2' * 12}"}
    ]
    assert f"code mine.py: SHA-256 {'1' * 12} → SHA-256 {'2' * 12}" in markdown(report.sections)


def test_runs_teach_the_spread_by_themselves() -> None:
    """Every finished run is remembered; those that are compared do not count for themselves."""
    drifting = [dataclasses.replace(CALM, fixed_s=0.010 * (1 + 0.03 * (n % 3))) for n in range(5)]
    for number, model in enumerate(drifting):
        measured(f"r{number}", model)
    base, new = measured("a"), measured("b", dataclasses.replace(CALM, fixed_s=0.0103))
    report = compare(base, new)
    spread = report.data["run_spread"]
    assert spread["runs"] == 5 and 0.008 < spread["deviation"] < 0.04
    assert any("from 5 runs on this hardware" in line for line in report.sections[1].lines)
    narrow = compare(base, new, spread=NO_SPREAD)
    widths = [
        [high - low for low, high in (trial["ci95_change"] for trial in r.data["trials"])]
        for r in (report, narrow)
    ]
    assert all(wide > tight for wide, tight in zip(*widths, strict=True))


def test_other_hardware_is_refused_unless_allowed() -> None:
    other = dataclasses.replace(TWO_CORES, cpu_model="another processor", cores=4)
    here = measured("a", threads_per_rank=1)
    there = measured("b", launcher=FakeLauncher(CALM, machine=other), threads_per_rank=1)
    with pytest.raises(CannotRun, match=r"different hardware \(cpu_model: .*; cores: 2 and 4\); --any-hard"):
        compare(here, there)
    report = compare(here, there, any_hardware=True, spread=NO_SPREAD)
    assert verdicts(report) == {"no difference"}
    assert {difference["name"] for difference in report.data["differences"]} == {"cpu_model", "cores"}


def test_other_work_is_compared_and_passes_only_where_nothing_must_be_inconclusive() -> None:
    runs = []
    for name, batch in (("a", 64), ("b", 65)):
        request = ask("scale", output_dir=name, batch_size=batch, world_size=[1, 2], repeats=2)
        runs.append(scale(request, FakeLauncher(CALM), RecordingWatcher()).path)
    before, after = runs
    assert before is not None and after is not None
    report = compare(before, after)
    assert {trial["work"] for trial in report.data["trials"]} == {"different"}
    assert report.data["trials"][0]["differs"] == [{"setting": "batch_size", "base": 64, "new": 65}]
    assert (report.exit_code, compare(before, after, fail_inconclusive=True).exit_code) == (0, 6)


def test_runs_whose_configurations_may_belong_together_in_two_ways_are_refused() -> None:
    several, single = measured("a"), measured("b", batch_size=32)
    message = r"not clear: the first has single, 1 rank, batch 16; single, 1 rank, batch 64, the second sin"
    with pytest.raises(BadInput, match=message):
        compare(several, single)


@pytest.mark.parametrize("name", ["nowhere", "runs/latest"])
def test_a_missing_run_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        compare(Path(name), Path(name))


def test_a_run_without_a_successful_launch_is_refused() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="died")

    broken = measured("b", launcher=FakeLauncher(CALM, outcomes=fail))
    with pytest.raises(BadInput, match="no successful launch"):
        compare(measured("a"), broken)


def test_broken_lines_and_unknown_machines_are_noted() -> None:
    old, new = measured("a"), measured("b")
    (old / "environment.json").unlink()
    with (new / "trials.jsonl").open("a") as stream:
        stream.write("{\n")
    notes = compare(old, new).data["notes"]
    assert notes[0] == "The machine of a is not recorded."
    assert "left out" in notes[1]


# Runs side by side


def scaled(name: str, exposed_s: float, contention_s: float = 0.0, **asked: Any) -> Path:
    model = CostModel(exposed_comm_s={2: exposed_s}, contention_s=contention_s)
    request = ask("scale", output_dir=name, world_size=[1, 2], batch_size=50, repeats=2, **asked)
    report = scale(request, FakeLauncher(model), RecordingWatcher())
    assert report.path is not None
    return report.path


def test_three_runs_side_by_side_attribute_the_difference_to_communication() -> None:
    paths = [scaled("fast", 0.001), scaled("slow", 0.010), scaled("crowded", 0.001, contention_s=0.010)]
    report = show_side_by_side(paths)
    assert report.exit_code == 0
    rows = [row for row in report.data["rows"] if row["world_size"] == 2]
    assert [row["run"] for row in rows] == ["fast", "slow", "crowded"]
    assert [row["efficiency"] for row in rows] == pytest.approx([20 / 21, 20 / 30, 20 / 31])
    fast, slow, crowded = rows
    assert fast["behind_first_ranks"] is None
    # Speed that is lost is 2 × (time lost) ÷ step; all of it is communication here, and none of it there.
    assert slow["behind_first_ranks"] == pytest.approx(2 * 20 / 21 - 2 * 20 / 30)
    assert slow["behind_first_by_exposed_ranks"] == pytest.approx(slow["behind_first_ranks"])
    assert crowded["behind_first_by_exposed_ranks"] == pytest.approx(2 * 1 / 31 - 2 * 1 / 21)
    for figure in ("95 % in fast", "67 % in slow", "65 % in crowded", "0.61", "-0.03"):
        assert figure in report.sections[0].lines[0]
    assert "without a verdict" in report.sections[0].lines[1]


def test_different_jobs_are_not_shown_side_by_side() -> None:
    with pytest.raises(BadInput, match=r"these runs have no job in common.*hidden_dim"):
        show_side_by_side([scaled("a", 0.001), scaled("b", 0.001, hidden_dim=64)])


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b")])
def test_a_run_without_a_partner_is_named_wherever_it_stands(order: tuple[str, ...]) -> None:
    paths = {
        "a": scaled("a", 0.001),
        "b": scaled("b", 0.004, steps_per_epoch=20, seed=1),  # the same job, for longer
        "c": scaled("c", 0.001, hidden_dim=64),
    }
    report = show_side_by_side([paths[name] for name in order])
    assert [row["run"] for row in report.data["rows"]] == ["a", "b", "a", "b"]
    behind = {row["run"]: row["behind_first_ranks"] for row in report.data["rows"] if row["world_size"] == 2}
    assert behind["a"] is None and behind["b"] > 0.0  # also where the first run has another job
    assert {row["run"] for row in report.data["rows_of_one_run"]} == {"c"}
    (alone,) = [part for part in report.sections if part.title == "Measured in one run only"]
    assert alone.lines[0].startswith("c: 1 rank, batch 50")
    (note,) = [note for note in report.data["notes"] if note.startswith("c has no job in common")]
    assert "hidden_dim" in note


def test_every_row_of_every_run_is_in_one_list() -> None:
    sizes = {"a": [1, 2], "b": [1, 4], "c": [1, 2, 8]}
    paths = []
    for name, world_sizes in sizes.items():
        request = ask("scale", output_dir=name, world_size=world_sizes, batch_size=50, repeats=2)
        report = scale(request, FakeLauncher(CostModel()), RecordingWatcher())
        assert report.path is not None
        paths.append(report.path)
    data = show_side_by_side(paths).data
    listed = [(row["run"], row["world_size"]) for row in (*data["rows"], *data["rows_of_one_run"])]
    assert sorted(listed) == sorted((name, size) for name, worlds in sizes.items() for size in worlds)
    assert [(row["run"], row["world_size"]) for row in data["rows_of_one_run"]] == [("b", 4), ("c", 8)]


def test_a_run_that_is_given_twice_has_two_names() -> None:
    path = measured("a", batch_size=16)
    assert show_side_by_side([path, path]).data["runs"] == [str(path), f"{path} (2)"]


def test_failed_launches_of_runs_side_by_side_are_mentioned() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        failing = trial.world_size == 2 and launch == 1 and trial.is_training and not trial.is_ablation
        return Outcome(status="failed", reason="no luck") if failing else None

    request = ask("scale", output_dir="b", world_size=[1, 2], batch_size=50, repeats=2)
    broken = scale(request, FakeLauncher(CostModel(), outcomes=fail), RecordingWatcher())
    assert broken.path is not None
    notes = show_side_by_side([scaled("a", 0.001), broken.path]).data["notes"]
    assert any(note.startswith("b: 1 of ") and "failed" in note for note in notes)


def test_runs_that_measured_memory_are_refused_with_what_shows_them() -> None:
    def of_memory(name: str) -> Path:
        report = memory(ask_benchmark("memory", output_dir=name), FakeLauncher(CALM), RecordingWatcher())
        assert report.path is not None
        return report.path

    with pytest.raises(BadInput, match=r"a measured memory.*scalescope explain a "):
        compare(of_memory("a"), of_memory("b"))
    with pytest.raises(BadInput, match="b measured memory"):
        compare(measured("c"), Path("b"))
