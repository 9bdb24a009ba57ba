"""Other load in a run: what is repeated and left out, what is said, and what no rule may claim meanwhile."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.experiment.explanations import records_breakdown
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import FIRST_REPEAT
from scalescope.results.run import load_run
from tests.builders.requests import with_gpus
from tests.builders.studies import comm, memory, scale, train
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, ask_benchmark, summary_of

BUSY = OtherLoad(cores=2, other_cores=1.1, rank_waits=(0.5,))
QUIET = OtherLoad(cores=2, other_cores=0.05, rank_waits=(0.01,))
MODEL = CostModel(exposed_comm_s={2: 0.004}, launch_noise=0.01)
SLOW_INPUT = CostModel(fixed_s=0.010, per_sample_s=0.001, input_s={1: 0.030})
SLOWED = 3.0

Loads = Callable[[Trial, int], OtherLoad]


def busy_for(*attempts: int) -> Loads:
    """Others compute during these launches, counted from 0 over the whole run."""
    return lambda trial, attempt: BUSY if attempt in attempts else QUIET


def always(trial: Trial, attempt: int) -> OtherLoad:
    return BUSY


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/trials.jsonl").read_text().splitlines()]


def findings_of(path: Path | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = summary_of(path)["results"]["findings"]
    return found


def test_a_disturbed_launch_is_kept_repeated_and_does_not_count() -> None:
    watcher = RecordingWatcher()
    launcher = FakeLauncher(MODEL, loads=busy_for(1))
    report = train(ask("train", repeats=3), launcher, watcher)
    assert [launch for _, launch in launcher.launched] == [0, 1, 2, FIRST_REPEAT]
    assert len(records()) == 4
    (training,) = summary_of(report.path)["results"]["training"]
    assert training["launches"] == 3
    (note,) = [note for note in watcher.notes if note.startswith("Other load")]
    assert "disturbed 1 of 4 launches" in note


def test_what_is_compared_is_repeated_together_in_a_round_of_its_own() -> None:
    launcher = FakeLauncher(MODEL, loads=lambda trial, attempt: BUSY if attempt == 3 else QUIET)
    asked = ask("scale", world_size=[1, 2], batch_size=32, repeats=3)
    report = scale(asked, launcher, RecordingWatcher(), waterfall=False)
    run = load_run("run")
    again = [result.trial for result in run.results if result.launch == FIRST_REPEAT]
    assert {1, 2} == {trial.world_size for trial in again}
    rows = scaling_rows(configurations(load_run(report.path or "run").results))
    (counted,) = [row.configuration.launches for row in rows if row.ranks == 2]
    assert len(counted) == 3 and not any(launch.is_disturbed for launch in counted)


def test_without_repeating_it_is_left_out_of_the_estimate() -> None:
    launcher = FakeLauncher(MODEL, loads=busy_for(1))
    report = train(ask("train", repeats=3, repeat_disturbed="no"), launcher, RecordingWatcher())
    assert len(launcher.launched) == 3
    (training,) = summary_of(report.path)["results"]["training"]
    assert training["launches"] == 2
    assert any("1 of 3 launches are left out" in warning for warning in training["warnings"])


def test_a_load_that_stays_is_not_waited_for_and_its_launches_are_marked() -> None:
    launcher = FakeLauncher(MODEL, loads=always)
    report = train(ask("train", repeats=5), launcher, RecordingWatcher())
    assert len(launcher.launched) == 5 + 3
    (training,) = summary_of(report.path)["results"]["training"]
    assert training["launches"] == 5 + 3
    assert any("a busy machine: other processes used 1.1" in warning for warning in training["warnings"])


def test_no_trial_is_repeated_more_often_than_it_was_asked_for() -> None:
    # One repeat in two is disturbed, so that the load never seems to stay.
    launcher = FakeLauncher(MODEL, loads=lambda trial, attempt: BUSY if attempt < 2 or attempt % 2 else QUIET)
    train(ask("train", repeats=2), launcher, RecordingWatcher())
    assert len(launcher.launched) <= 4


def test_what_is_continued_repeats_no_more_than_is_left() -> None:
    train(ask("train", repeats=2), FakeLauncher(MODEL, loads=always), RecordingWatcher())
    assert len(records()) == 4  # each twice
    again = FakeLauncher(MODEL, loads=always)
    train(ask("train", repeats=2, resume=True), again, RecordingWatcher())
    assert again.launched == []


def test_a_repeat_that_fails_does_not_cost_the_launch_it_repeats() -> None:
    attempts: list[int] = []

    def fails_later(trial: Trial, launch: int) -> Outcome | None:
        attempts.append(launch)
        return Outcome(status="failed", reason="lost") if len(attempts) > 1 else None

    launcher = FakeLauncher(MODEL, outcomes=fails_later, loads=busy_for(0))
    train(ask("train"), launcher, RecordingWatcher())
    (result,) = load_run("run").results
    assert (result.status, result.is_disturbed) == ("ok", True)


def test_it_is_judged_by_the_load_and_never_by_the_speed() -> None:
    slow = CostModel(factors={(("batch_size", 10),): SLOWED}, launch_noise=0.3)
    launcher = FakeLauncher(slow, loads=lambda trial, attempt: QUIET)
    train(ask("train", repeats=4), launcher, RecordingWatcher())
    assert len(launcher.launched) == 4


def test_memory_does_not_depend_on_other_load() -> None:
    launcher = FakeLauncher(MODEL, loads=always)
    memory(ask_benchmark("memory", search="no"), launcher, RecordingWatcher())
    assert len(set(launcher.launched)) == len(launcher.launched)


def test_a_recording_measures_no_speed_and_is_not_repeated() -> None:
    watcher = RecordingWatcher()
    train(ask("train", batch_size=10), FakeLauncher(MODEL, with_gpus(1), loads=always), watcher)
    timed = [trial for trial, _ in watcher.launched if not records_breakdown(trial)]
    assert len(watcher.launched) - len(timed) == 1
    assert len(timed) > len({trial.trial_id for trial in timed})
    (note,) = [note for note in watcher.notes if note.startswith("Other load")]
    assert f"disturbed {len(timed)} of {len(timed)} launches" in note


def test_collectives_are_repeated_too() -> None:
    launcher = FakeLauncher(MODEL, loads=busy_for(0))
    comm(ask_benchmark("comm", world_size=2, collective="all_reduce"), launcher, RecordingWatcher())
    assert FIRST_REPEAT in {launch for _, launch in launcher.launched}


def test_it_is_said_before_the_first_launch_and_stored() -> None:
    watcher = RecordingWatcher()
    train(ask("train"), FakeLauncher(MODEL, load_at_start=BUSY), watcher)
    assert watcher.notes[-1].startswith("Other load: other processes use 1.1 of 2 cores")
    assert json.loads(Path("run/environment.json").read_text())["load_at_start"]["other_cores"] == 1.1


def test_a_quiet_machine_is_not_mentioned() -> None:
    watcher = RecordingWatcher()
    launcher = FakeLauncher(MODEL, load_at_start=QUIET, loads=lambda trial, attempt: QUIET)
    report = scale(ask("scale", world_size=[1, 2], repeats=2), launcher, watcher)
    assert not [note for note in watcher.notes if "load" in note]
    assert not [finding for finding in findings_of(report.path) if finding["rule"] == "other load"]


def test_where_speed_is_lost_it_is_the_first_finding_and_ranks_are_not_blamed_for_it() -> None:
    contended = CostModel(contention_s=0.02)
    quiet = scale(ask("scale", world_size=[1, 2]), FakeLauncher(contended), RecordingWatcher())
    assert findings_of(quiet.path)[0]["rule"] == "ranks slow each other down"
    busy = scale(
        ask("scale", world_size=[1, 2], output_dir="busy"),
        FakeLauncher(contended, loads=always),
        RecordingWatcher(),
    )
    rules = [finding["rule"] for finding in findings_of(busy.path)]
    assert rules[0] == "other load"
    assert "ranks slow each other down" not in rules
    first = findings_of(busy.path)[0]
    assert first["evidence"]["cores used by others"]["value"] == pytest.approx(1.1)
    assert first["lost"] > 0.0


def test_of_one_rank_it_is_the_first_finding_where_every_launch_was_disturbed() -> None:
    launcher = FakeLauncher(SLOW_INPUT, loads=always)
    report = train(ask("train", num_workers=0, batch_size=10), launcher, RecordingWatcher())
    first, second = findings_of(report.path)[:2]
    assert (first["rule"], second["rule"]) == ("other load", "input-bound")
    assert first["lost"] == pytest.approx(0.5)
    assert report.next_step is not None and report.next_step.argv[1] == "train"
    repeated = FakeLauncher(SLOW_INPUT, loads=busy_for(0))  # not where disturbed launches were repeated
    request = ask("train", num_workers=0, batch_size=10, output_dir="repeated")
    assert findings_of(train(request, repeated, RecordingWatcher()).path)[0]["rule"] == "input-bound"


def test_no_row_is_excellent_while_others_compute() -> None:
    ideal = CostModel()
    quiet = scale(ask("scale", world_size=[1, 2]), FakeLauncher(ideal), RecordingWatcher())
    assert summary_of(quiet.path)["results"]["scaling"][-1]["reading"] == "excellent"
    launcher = FakeLauncher(ideal, loads=always)
    busy = scale(ask("scale", world_size=[1, 2], output_dir="busy"), launcher, RecordingWatcher())
    assert summary_of(busy.path)["results"]["scaling"][-1]["reading"] == "good"
    assert busy.headline is not None
    assert "on a busy machine" in busy.headline
