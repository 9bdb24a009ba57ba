"""The summary of texts and epochs, and the short figures of one launch."""

import dataclasses
from typing import Any

import pytest

from scalescope.diagnose import step_facts
from scalescope.experiment.explanations import without_optimizer
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.results_json import results_json
from scalescope.report.training.launch_figures import LaunchFigures, figures_of, main_figure, sample_rate
from scalescope.report.training.sections import next_after_training, training_sections
from scalescope.results.result import RankRecord
from scalescope.results.run import Run
from tests.builders.known_runs import make_run, make_trials
from tests.builders.results import make_result, make_trial
from tests.builders.steps import halves_of

from ..conftest import Render


def run_with(samples: dict[str, list[float]], **settings: Any) -> Run:
    """One launch on two ranks whose records hold these samples too."""
    run = make_run(make_trials(world_size=2, batch_size=64, **settings), launches=1)
    (result,) = run.results
    ranks = [dataclasses.replace(rank, samples={**rank.samples, **samples}) for rank in result.ranks]
    return dataclasses.replace(run, results=(dataclasses.replace(result, ranks=ranks),))


def training_entry(run: Run) -> dict[str, Any]:
    (entry,) = results_json(run)["results"]["training"]
    return dict(entry)


EVALUATED = {
    "epoch_time_s": [12.0, 10.5],
    "train_accuracy": [0.7, 0.95],
    "validation_accuracy": [0.65, 0.8125],
}


def test_epochs_are_a_table_with_the_final_accuracy_below(render: Render) -> None:
    shown = render(training_sections(run_with(EVALUATED))).splitlines()
    start = shown.index("Epochs (ddp, 2 ranks, batch 64)")
    assert shown[start + 1].split("  ")[0] == "Epoch"
    assert [line.split() for line in shown[start + 3 : start + 5]] == [
        ["1", "12.00", "0.700", "0.650"],
        ["2", "10.50", "0.950", "0.812"],
    ]
    assert shown[start + 5] == ("Final accuracy: 0.812 on validation data, 0.950 on training data (epoch 2).")


def test_epochs_without_an_evaluation_have_times_alone(render: Render) -> None:
    shown = render(training_sections(run_with({"epoch_time_s": [3.0, 4.0]})))
    assert "Epoch   Time (s)" in shown
    assert "accuracy" not in shown


def test_a_single_epoch_needs_no_table(render: Render) -> None:
    assert "Epochs" not in render(training_sections(run_with({"epoch_time_s": [3.0]})))


def test_many_epochs_are_shown_from_both_ends(render: Render) -> None:
    shown = render(training_sections(run_with({"epoch_time_s": [1.0] * 500})))
    numbers = [line.split()[0] for line in shown.split("Epochs")[1].splitlines()[3:]]
    assert numbers == [*map(str, range(1, 11)), "…", *map(str, range(491, 501))]


def test_results_hold_every_epoch() -> None:
    assert training_entry(run_with(EVALUATED))["epochs"] == [
        {"epoch": 1, "time_s": 12.0, "train_accuracy": 0.7, "validation_accuracy": 0.65},
        {"epoch": 2, "time_s": 10.5, "train_accuracy": 0.95, "validation_accuracy": 0.8125},
    ]
    assert "epochs" not in training_entry(run_with({"epoch_time_s": [3.0]}))


def test_texts_are_counted_in_tokens_too(render: Render) -> None:
    run = make_run([make_trial(workload="transformer", max_seq_len=64)], launches=1)
    entry = training_entry(run)
    assert entry["tokens_per_s"] == entry["samples_per_s"] * 64
    throughput = f": {entry['samples_per_s']:,.0f} samples/s, {entry['tokens_per_s']:,.0f} tokens/s\n"
    assert throughput in render(training_sections(run))
    assert "tokens_per_s" not in training_entry(run_with({}))


def test_ablations_and_recordings_are_not_shown_as_results(render: Render) -> None:
    (trial,) = make_trials(batch_size=16)
    ablation = without_optimizer(trial)
    assert ablation is not None
    run = make_run([trial, ablation], launches=1)
    assert [section.title for section in training_sections(run) if section.title] == [
        "=== Training Benchmark (single) ==="
    ]
    assert len(results_json(run)["results"]["training"]) == 1
    following = next_after_training(AnalyzedRun(dataclasses.replace(run, results=run.results[::-1])))
    assert following is not None and "--without-optimizer" not in following.argv


def test_the_parts_of_a_step_follow_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_facts, "step_waterfall", halves_of)
    run = make_run(make_trials(batch_size=16), launches=1)
    summary, parts, *_ = training_sections(run)
    assert summary.title == "=== Training Benchmark (single) ==="
    assert parts.title is not None and parts.title.startswith("A step takes")
    terms = training_entry(run)["step_waterfall"]["terms"]
    assert [term["name"] for term in terms] == ["forward", "idle: after a synchronization"]


TRAINED = make_result(make_trial(batch_size=10), [[0.1] * 10])


def record(**content: Any) -> RankRecord:
    return RankRecord(rank=0, host="here", device="cpu", placement="", **content)


def test_a_training_launch_has_a_step_time_and_samples() -> None:
    figures = figures_of(TRAINED)
    assert figures == LaunchFigures(step_s=0.1, samples_per_s=pytest.approx(100.0))


def test_a_collective_has_the_best_bandwidth_over_sizes() -> None:
    samples = {"all_reduce/out/1000": [0.001], "all_reduce/out/2000": [0.001], "barrier/out/0": [0.001]}
    settings = {"benchmark": "comm", "dtype": "float32", "world_size": 2}
    result = dataclasses.replace(TRAINED, settings=settings, ranks=[record(samples=samples)] * 2)
    assert figures_of(result) == LaunchFigures(busbw_bytes_per_s=pytest.approx(2e6))


def test_memory_is_that_of_the_rank_that_takes_most() -> None:
    ranks = [record(counters={"measured/peak": peak}) for peak in (1 << 20, 3 << 20, None)]
    result = dataclasses.replace(TRAINED, settings={"benchmark": "memory"}, ranks=ranks)
    assert figures_of(result) == LaunchFigures(peak_bytes=3 << 20)


def test_a_trace_has_no_figures() -> None:
    figures = figures_of(dataclasses.replace(TRAINED, settings={"benchmark": "profile"}))
    assert figures is not None
    assert (main_figure([figures]), sample_rate([figures])) == (None, None)


@pytest.mark.parametrize("change", [{"status": "failed"}, {"status": "oom"}, {"ranks": []}])
def test_a_launch_that_did_not_end_well_has_none(change: dict[str, Any]) -> None:
    assert figures_of(dataclasses.replace(TRAINED, **change)) is None


@pytest.mark.parametrize(
    ("launches", "figure", "samples"),
    [
        ([], None, None),
        ([LaunchFigures(step_s=s, samples_per_s=1 / s) for s in (0.2, 0.1, 0.4)], "200 ms", "5.00"),
        ([LaunchFigures(busbw_bytes_per_s=1.25e9)], "1.25 GB/s", None),
        ([LaunchFigures(peak_bytes=3 << 20), LaunchFigures()], "3.00 MiB", None),
    ],
)
def test_medians_over_launches_are_shown(
    launches: list[LaunchFigures], figure: str | None, samples: str | None
) -> None:
    assert (main_figure(launches), sample_rate(launches)) == (figure, samples)
