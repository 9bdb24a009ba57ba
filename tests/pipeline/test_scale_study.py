"""`scale` recovers the truth of a known cost model."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.analysis.statistics import Estimate
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import Result
from scalescope.results.run_folder import RunFolder
from scalescope.studies.plan import Plan
from scalescope.studies.scaling.scale import ScaleStudy, powers_of_two_to
from tests.builders.studies import plan_of as planned
from tests.builders.studies import scale
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

MODEL = CostModel(fixed_s=0.010, per_sample_s=0.0002, wrapper_s=0.001, exposed_comm_s={2: 0.004, 4: 0.012})
SWEEP: dict[str, Any] = {"world_size": [1, 2, 4], "batch_size": [50, 500]}


def true_step_s(ranks: int, batch: int) -> float:
    wrapper = MODEL.wrapper_s if ranks > 1 else 0.0
    return MODEL.fixed_s + MODEL.per_sample_s * batch + wrapper + MODEL.exposed_comm_s.get(ranks, 0.0)


def plan_of(**settings: Any) -> Plan:
    request = ask("scale", **settings)
    return planned(ScaleStudy(), request, FakeLauncher(MODEL))


def test_without_noise_the_numbers_are_exact() -> None:
    report = scale(ask("scale", **SWEEP), FakeLauncher(MODEL), RecordingWatcher())
    assert report.exit_code == 0
    verdict, section, *_ = report.sections
    assert section.title == "weak scaling · mlp on cpu · batch per rank · 5 launches each · 1 thread per rank"
    assert section.table is not None and section.table.columns[:3] == ("ranks", "batch", "step (ms)")
    assert "(weak scaling)" in verdict.lines[0]
    rows = summary_of(report.path)["results"]["scaling"]
    assert [(row["world_size"], row["batch_size"]) for row in rows] == [
        (ranks, batch) for batch in (50, 500) for ranks in (1, 2, 4)
    ]
    for row in rows:
        ranks, batch = row["world_size"], row["batch_size"]
        speedup = ranks * true_step_s(1, batch) / true_step_s(ranks, batch)
        assert row["mode"] == "weak"
        assert row["baseline_world_size"] == 1
        assert row["speedup"] == pytest.approx(speedup)
        assert row["efficiency"] == pytest.approx(speedup / ranks)
        if ranks == 1:
            assert row["reading"] == "baseline"
            assert row["exposed_comm_s"] is None
            continue
        assert row["exposed_comm_s"] == pytest.approx(MODEL.exposed_comm_s[ranks])
        assert row["ci95_efficiency"] == pytest.approx([speedup / ranks] * 2)
        wrapped = true_step_s(1, batch) + MODEL.wrapper_s
        assert row["efficiency_of_wrapped_one_rank"] == pytest.approx(wrapped / true_step_s(ranks, batch))


def results_of(trials: tuple[Trial, ...], model: CostModel, seed: int) -> list[Result]:
    """Five launches of every trial; another seed is another draw of the noise."""
    launcher, folder, watcher = FakeLauncher(model), RunFolder(Path("unused")), RecordingWatcher()
    results = []
    for trial in (trial.replace(seed=seed) for trial in trials):
        for launch in range(5):
            outcome = launcher.launch(trial, launch, folder, None, watcher)  # type: ignore[arg-type]
            results.append(
                Result(
                    trial_id=trial.trial_id,
                    launch=launch,
                    order=0,
                    status=outcome.status,
                    settings=dict(trial.settings),
                    started_at="2026-01-15T10:30:00+00:00",
                    duration_s=1.0,
                    environment_id="fake",
                    ranks=outcome.records,
                )
            )
    return results


def covers(estimate: Estimate | None, truth: float) -> bool:
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    return estimate.low <= truth <= estimate.high


def test_the_truth_lies_in_the_intervals_of_noisy_runs() -> None:
    noisy = dataclasses.replace(MODEL, launch_noise=0.02)
    trials = plan_of(world_size=[1, 2, 4], batch_size=50, steps_per_epoch=5).trials
    trials = tuple(trial for trial in trials if trial.benchmark == "train")
    hits: dict[tuple[str, int], list[bool]] = {}
    for seed in range(100):
        for row in scaling_rows(configurations(results_of(trials, noisy, seed))):
            if row.is_baseline:
                continue
            efficiency = true_step_s(1, 50) / true_step_s(row.ranks, 50)
            truths = {
                "speedup": (row.speedup, efficiency * row.ranks),
                "efficiency": (row.efficiency, efficiency),
                "exposed": (row.communication_s, MODEL.exposed_comm_s[row.ranks]),
            }
            for name, (estimate, truth) in truths.items():
                hits.setdefault((name, row.ranks), []).append(covers(estimate, truth))
    assert {key: len(covered) for key, covered in hits.items()} == {
        (name, ranks): 100 for name in ("speedup", "efficiency", "exposed") for ranks in (2, 4)
    }
    for key, covered in hits.items():
        assert 91 <= sum(covered) <= 99, key
    everything = [hit for covered in hits.values() for hit in covered]
    assert 0.93 <= sum(everything) / len(everything) <= 0.97


def test_strong_scaling_is_labelled_strong() -> None:
    request = ask("scale", world_size=[1, 2, 4], global_batch_size=400, repeats=2)
    report = scale(request, FakeLauncher(MODEL), RecordingWatcher())
    rows = summary_of(report.path)["results"]["scaling"]
    assert {(row["mode"], row["batch_size"]) for row in rows} == {("strong", 400)}
    for row in rows:
        truth = true_step_s(1, 400) / true_step_s(row["world_size"], 400 // row["world_size"])
        assert row["speedup"] == pytest.approx(truth)
        assert row["efficiency"] == pytest.approx(truth / row["world_size"])
    titles = [section.title for section in report.sections if section.title]
    assert titles[0].startswith("strong scaling · mlp on cpu · global batch · 2 launches each")
    assert "(strong scaling)" in report.sections[0].lines[0]


def test_world_sizes_without_one_are_labelled_relative() -> None:
    report = scale(ask("scale", world_size=[2, 4], batch_size=50), FakeLauncher(MODEL), RecordingWatcher())
    rows = summary_of(report.path)["results"]["scaling"]
    assert [row["baseline_world_size"] for row in rows] == [2, 2]
    assert rows[1]["speedup"] == pytest.approx(2 * true_step_s(2, 50) / true_step_s(4, 50))
    assert rows[1]["efficiency"] == pytest.approx(true_step_s(2, 50) / true_step_s(4, 50))
    assert rows[1]["serial_fraction"] is None
    titles = [section.title for section in report.sections if section.title]
    assert titles[0].endswith(" · relative to 2 ranks")
    assert " of an ideal 2× (weak scaling)" in report.sections[0].lines[0]
    assert not any(trial.world_size == 1 for trial in plan_of(world_size=[2, 4]).trials)


def test_the_plan_adds_baselines_and_runs_without_communication() -> None:
    trials = plan_of(world_size=[1, 2], batch_size=50).trials
    planned = {(trial.world_size, trial.strategy, tuple(trial.ablations)) for trial in trials}
    assert planned == {
        (1, "single", ()),
        (1, "ddp", ()),
        (2, "ddp", ()),
        (2, "ddp", ("without_communication",)),
    }
    assert [(t.world_size, t.strategy) for t in trials if t.benchmark == "arrivals"] == [(2, "ddp")]
    assert len(trials) == 4 + 1


def test_the_default_sweep_covers_the_machine() -> None:
    many = dataclasses.replace(TWO_CORES, cores=64)
    request = ask("scale")
    trials = planned(ScaleStudy(), request, FakeLauncher(MODEL, many)).trials
    assert {trial.world_size for trial in trials} == {1, 2, 4}
    assert len({trial.rank_batch_size for trial in trials}) == 2
    assert {trial.world_size for trial in plan_of().trials} == {1, 2}


@pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_world_sizes_double_up_to_the_most(most: int, sizes: list[int]) -> None:
    assert powers_of_two_to(most) == sizes


def test_a_batch_without_its_one_rank_run_is_not_compared_with_another_baseline() -> None:
    def lose_one_rank(trial: Trial, launch: int) -> Outcome | None:
        lost = trial.world_size == 1 and trial.rank_batch_size == 50
        return Outcome(status="failed", reason="lost") if lost else None

    report = scale(ask("scale", **SWEEP), FakeLauncher(MODEL, outcomes=lose_one_rank), RecordingWatcher())
    assert report.exit_code == 4
    rows = summary_of(report.path)["results"]["scaling"]
    assert {(row["batch_size"], row["baseline_world_size"]) for row in rows} == {(50, 2), (500, 1)}
    failed, verdict = report.sections[:2]
    assert failed.title == "Failed"
    assert "batch 500" in verdict.lines[0] and "batch 50 " not in verdict.lines[0]
    titles = [section.title for section in report.sections[1:] if section.title]
    assert "relative to" in titles[0]


VARIED: dict[str, Any] = {"world_size": [1, 2], "batch_size": 50, "precision": ["fp32", "bf16"]}


def test_varied_settings_are_in_the_scaling_table_and_in_the_verdict() -> None:
    report = scale(ask("scale", **VARIED), FakeLauncher(MODEL), RecordingWatcher())
    verdict, section, *_ = report.sections
    assert section.table is not None
    assert section.table.columns[:4] == ("ranks", "batch", "precision", "step (ms)")
    assert sorted((row[0], row[2]) for row in section.table.rows) == [
        ("1", "bf16"),
        ("1", "fp32"),
        ("2", "bf16"),
        ("2", "fp32"),
    ]
    assert "at batch 50, precision " in verdict.lines[0]
    assert "efficiency" not in verdict.lines[0]  # by which of the two jobs?


def test_a_dry_run_shows_what_every_trial_is_and_what_is_varied() -> None:
    launcher = FakeLauncher(MODEL)
    (section,) = scale(ask("scale", **VARIED, dry_run=True), launcher, RecordingWatcher()).sections
    assert section.table is not None
    assert section.table.columns == ("trial", "precision", "measures", "id")
    assert {row[1] for row in section.table.rows} == {"fp32", "bf16", "—"}
    ids = [row[-1] for row in section.table.rows]
    assert len(set(ids)) == len(ids) == 10 + 1  # one exchange serves both
    assert launcher.launched == []
    plain = {**VARIED, "precision": "fp32"}
    (section,) = scale(ask("scale", **plain, dry_run=True), launcher, RecordingWatcher()).sections
    assert section.table is not None
    assert section.table.columns == ("trial", "measures", "id")
    assert sorted(row[:2] for row in section.table.rows) == [
        ("arrivals, ddp, 2 ranks, batch 50", "when ranks arrive at exchanges"),
        ("comm, 2 ranks, float32", "collectives"),
        ("ddp, 1 rank, batch 50", "training"),
        ("ddp, 2 ranks, batch 50", "training"),
        ("ddp, 2 ranks, batch 50, no communication", "training without communication"),
        ("single, 1 rank, batch 50", "training"),
    ]
