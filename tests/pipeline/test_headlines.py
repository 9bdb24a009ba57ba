"""Every verb ends in one sentence, which its report, its files and `explain` begin with."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.validity import judge
from scalescope.report.performance import NOTHING
from scalescope.results.result import RankRecord
from scalescope.studies.stored import explain
from scalescope.studies.study import Report
from tests.builders.studies import comm, memory, scale, standard_run, train, tune
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, ask_benchmark

pytestmark = pytest.mark.usefixtures("without_page")
MODEL = CostModel(exposed_comm_s={2: 0.02}, factors={(("precision", "bf16"),): 0.5})
TWO_RANKS: dict[str, Any] = {"world_size": [1, 2], "batch_size": 50, "repeats": 2}


def run_scale(launcher: FakeLauncher) -> Report:
    return scale(ask("scale", **TWO_RANKS), launcher, RecordingWatcher())


def run_train(launcher: FakeLauncher) -> Report:
    return train(ask("train", world_size=2, batch_size=50), launcher, RecordingWatcher())


def run_comm(launcher: FakeLauncher) -> Report:
    asked = ask_benchmark("comm", collective="all_reduce", max_bytes="1M", world_size=2)
    return comm(asked, launcher, RecordingWatcher())


def run_memory(launcher: FakeLauncher) -> Report:
    return memory(ask_benchmark("memory"), launcher, RecordingWatcher())


def run_main_job(launcher: FakeLauncher) -> Report:
    return standard_run(ask("run", **TWO_RANKS), launcher, RecordingWatcher())


def run_tune(launcher: FakeLauncher) -> Report:
    return tune(ask("tune", world_size=2), launcher, RecordingWatcher(), levers=("precision",))


@pytest.mark.parametrize(
    ("study", "result"),
    [
        (run_scale, "2 ranks deliver 1.00× at batch 50"),
        (run_train, "samples/s"),
        (run_comm, "all_reduce"),
        (run_memory, "batch"),
        (run_main_job, "2 ranks deliver 1.00× at batch 50"),
        (run_tune, "precision bf16 is faster: 2.00×"),
    ],
)
def test_the_headline_is_one_sentence_with_the_main_result_everywhere(study: Any, result: str) -> None:
    report = study(FakeLauncher(MODEL))
    assert result in report.headline
    assert report.headline.endswith(".") and report.headline.isprintable()
    assert report.headline == (report.path / "performance_report.txt").read_text().splitlines()[0]
    assert report.headline == explain(Path("run"))[0].lines[0]


@pytest.mark.parametrize("study", [run_scale, run_train, run_comm])
def test_a_run_without_results_has_the_headline_for_nothing_measured(study: Any) -> None:
    failing = FakeLauncher(MODEL, outcomes=lambda trial, launch: Outcome(status="failed", reason="broken"))
    report = study(failing)
    assert report.headline == NOTHING
    assert report.exit_code != 0


def measured_between(ranks: list[int], best: int = 2, **asked: Any) -> str:
    """Every two ranks take 100 µs to start, and the `best` number of them sends fastest."""

    def outcome(trial: Trial, launch: int) -> Outcome:
        world = trial.world_size
        times_s = {1 << 10: 1e-4 * world / 2, 1 << 20: 1e-2 if world == best else 1e-1}
        kind = "pair/0-1" if trial.settings["pairs"] else "all_reduce/in"
        samples = {f"{kind}/{size}": [time_s] * 5 for size, time_s in times_s.items()}
        made = [
            RankRecord(rank=rank, host="fake", device="cpu", placement="", samples=samples)
            for rank in range(world)
        ]
        return judge(trial, made)

    request = ask_benchmark("comm", collective="all_reduce", world_size=ranks, **asked)
    report = comm(request, FakeLauncher(MODEL, outcomes=outcome), RecordingWatcher())
    return report.headline or ""


def test_the_headline_of_collectives_names_their_ranks_and_mixes_none() -> None:
    assert measured_between([4]).startswith("all_reduce over 4 ranks takes 200 µs at 1.00 KiB")
    for best in (2, 8):
        headline = measured_between([2, 8], best, output_dir=f"run{best}")
        assert "2 ranks takes 100 µs" in headline or "8 ranks takes 400 µs" in headline
    pairs = measured_between([3], pairs="true", output_dir="pairs")
    assert pairs.startswith("Ranks 0 and 1 exchange ")
    assert pairs.endswith(" in each direction.")


def test_a_dry_run_has_no_headline() -> None:
    report = scale(ask("scale", **TWO_RANKS, dry_run=True), FakeLauncher(MODEL), RecordingWatcher())
    assert report.headline is None
