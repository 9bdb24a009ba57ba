"""The waterfall recovers the losses of a known cost model, and adds up."""

from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from tests.builders.requests import with_gpus
from tests.builders.studies import scale, standard_run
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

WEAK: dict[str, Any] = {"world_size": [1, 2], "batch_size": 50, "repeats": 3}
ALONE_S = 0.010 + 50 * 0.0002


def measured(model: CostModel, *, waterfall: bool = True, **asked: Any) -> list[dict[str, Any]]:
    report = scale(ask("scale", **asked), FakeLauncher(model), RecordingWatcher(), waterfall=waterfall)
    rows: list[dict[str, Any]] = summary_of(report.path)["results"]["scaling"]
    return rows


def terms_of(row: dict[str, Any]) -> dict[str, float | None]:
    return {term["name"]: term["time_s"] for term in row["waterfall"]["terms"]}


def test_every_term_is_recovered_from_the_model() -> None:
    model = CostModel(
        wrapper_s=0.001, contention_s=0.002, exposed_comm_s={2: 0.008}, late_s={1: 0.004}, launch_noise=0.0
    )
    (row,) = [row for row in measured(model, **WEAK) if row["world_size"] == 2]
    terms = terms_of(row)
    assert terms == pytest.approx(
        {
            "wrapper": 0.001,
            "contention": 0.002,
            "stragglers": 0.004,
            "random skew": 0.0,
            "communication": 0.008,
        },
        abs=1e-12,
    )
    fall = row["waterfall"]
    assert fall["delivered"] + sum(term["lost"] for term in fall["terms"]) == pytest.approx(2.0)
    assert fall["unexplained_s"] == pytest.approx(0.0, abs=1e-12)
    assert fall["delivered"] == pytest.approx(row["speedup"])
    assert row["waterfall"]["slowest_rank"] == {"rank": 1, "time_s": pytest.approx(0.004), "persistent": True}


def test_strong_scaling_begins_with_the_smaller_batch() -> None:
    model = CostModel(exposed_comm_s={2: 0.003})
    rows = measured(model, world_size=[1, 2], global_batch_size=100, repeats=2)
    assert [row["world_size"] for row in rows] == [1, 2]  # one rank's share is measured, and is no row
    terms = terms_of(rows[1])
    assert next(iter(terms)) == "smaller batch"
    # 50 samples take 20 ms alone, half of what 100 take is 15 ms.
    assert terms["smaller batch"] == pytest.approx(0.005)
    assert terms["communication"] == pytest.approx(0.003)


def test_only_waiting_for_samples_beyond_that_of_one_rank_counts() -> None:
    model = CostModel(input_s={1: 0.002, 2: 0.007}, exposed_comm_s={2: 0.003})
    rows = measured(model, **WEAK, num_workers=1)
    terms = terms_of(rows[-1])
    assert terms["input"] == pytest.approx(0.005)
    assert terms["communication"] == pytest.approx(0.003)
    assert rows[-1]["waterfall"]["ideal_step_time_s"] == pytest.approx(ALONE_S + 0.002)


def test_what_cannot_be_left_out_is_read_from_traces() -> None:
    model = CostModel(wrapper_s=0.001, contention_s=0.002, exposed_comm_s={2: 0.008})
    row = measured(model, **WEAK, find_unused_parameters="true", static_graph="false")[-1]
    assert row["waterfall"]["method"] == "trace"
    assert terms_of(row) == pytest.approx(
        {"wrapper": 0.001, "communication": 0.008, "slowed compute": 0.002}, abs=1e-12
    )
    assert row["waterfall"]["unexplained_s"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("verb", ["scale", "run"])
def test_a_model_that_communicates_itself_is_held_against_one_recorded_rank(verb: str) -> None:
    def refuse(trial: Trial, launch: int) -> Outcome | None:
        silent = trial.is_on("without_communication")
        return Outcome(status="failed", reason="the model has SyncBatchNorm") if silent else None

    model = CostModel(wrapper_s=0.001, contention_s=0.002, exposed_comm_s={2: 0.008})
    launcher = FakeLauncher(model, outcomes=refuse)
    verb_of = {"scale": scale, "run": standard_run}[verb]
    report = verb_of(ask(verb, **WEAK), launcher, RecordingWatcher())
    assert report.exit_code == 0
    row = summary_of(report.path)["results"]["scaling"][-1]
    assert row["waterfall"]["method"] == "trace"
    assert terms_of(row) == pytest.approx(
        {"wrapper": 0.001, "communication": 0.008, "slowed compute": 0.002}, abs=1e-12
    )


def test_a_pipeline_is_held_against_one_rank_that_nobody_could_ask_for() -> None:
    rows = measured(CostModel(), world_size=2, batch_size=48, repeats=2, strategy="pipeline")
    assert [row["world_size"] for row in rows] == [1, 2]
    assert set(terms_of(rows[-1])) == {
        "smaller microbatches", "unequal stages", "pipeline bubble", "exchange between stages"
    }  # fmt: skip


@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_sharded_strategies_have_a_waterfall_too(strategy: str) -> None:
    model = CostModel(wrapper_s=0.001, exposed_comm_s={2: 0.008})
    terms = terms_of(measured(model, **WEAK, strategy=strategy)[-1])
    assert (terms["wrapper"], terms["communication"]) == pytest.approx((0.001, 0.008))


def test_without_a_one_rank_run_waiting_for_samples_is_not_communication() -> None:
    model = CostModel(input_s={2: 0.020, 4: 0.020}, exposed_comm_s={2: 0.001, 4: 0.001})
    rows = measured(model, world_size=[2, 4], batch_size=50, repeats=2, num_workers=1)
    assert [row["exposed_comm_s"] for row in rows] == pytest.approx([0.001, 0.001])


def test_with_find_unused_parameters_communication_cannot_be_switched_off() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        return Outcome(status="failed", reason="no profiler") if trial.benchmark == "arrivals" else None

    launcher = FakeLauncher(CostModel(exposed_comm_s={2: 0.008}), outcomes=fail)
    asked = ask("scale", **WEAK, find_unused_parameters="true", static_graph="false")
    report = scale(asked, launcher, RecordingWatcher())
    assert report.exit_code == 0  # what only explains may fail
    row = summary_of(report.path)["results"]["scaling"][-1]
    assert terms_of(row)["communication"] is None
    (reason,) = {term["unknown_because"] for term in row["waterfall"]["terms"]} - {None}
    assert "cannot be switched off" in reason


def test_a_batch_whose_ranks_failed_keeps_its_row_of_one_rank() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        large = trial.world_size == 2 and trial.settings.get("batch_size") == 256
        return Outcome(status="oom", reason="too large") if large else None

    launcher = FakeLauncher(CostModel(), outcomes=fail)
    asked = {**WEAK, "batch_size": [50, 256]}
    report = scale(ask("scale", **asked), launcher, RecordingWatcher())
    rows = summary_of(report.path)["results"]["scaling"]
    assert {(row["world_size"], row["batch_size"]) for row in rows} == {(1, 50), (2, 50), (1, 256)}


def test_gpus_over_gloo_are_measured_without_collectives() -> None:
    watcher = RecordingWatcher()
    launcher = FakeLauncher(CostModel(), machine=with_gpus(2))
    report = scale(ask("scale", **WEAK, device="cuda", backend="gloo"), launcher, watcher)
    assert report.exit_code == 0
    assert any(note.startswith("Collectives are not measured: ") for note in watcher.notes)
