"""Runs of the first version are read and resumed as before; see tests/old_runs/README.md."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import Given
from scalescope.launch.launcher import Outcome
from scalescope.report.chapters.levers import chapter
from scalescope.results.old_formats import request_of_comment
from scalescope.results.result import Result, Stage
from scalescope.results.run import load_run
from scalescope.studies.execution import run_study
from scalescope.studies.prepared import prepare
from scalescope.studies.report import ReportOptions, gather
from scalescope.studies.request import Request
from scalescope.studies.stored import find_study, present
from scalescope.studies.study import Report, Study
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher

OLD_RUNS = Path(__file__).parent.parent / "old_runs"
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "comm": ("comm", ()),
    "memory": ("memory", ()),
    "scale": ("scale", ()),
    "search": ("tune", ("--levers", "precision,jit", "--threshold", "3%", "--combine")),
    "train": ("train", ("--profile",)),
    "tune": ("tune", ("--levers", "bucket_cap_mb", "--threshold", "3%")),
}
SEARCHES = ("search", "tune")  # the search of `tune` is another one since then
LEFT_OUT = (
    *("settings", "schema_version", "advice", "base", "new"),
    # Added since then.
    *("segments", "significance", "rows_of_one_run", "method", "communication_parts", "includes"),
    *("would_decide", "run_spread", "slowed_gpus", "hook_s"),
    *("step_waterfall", "whole_step", "cost_s", "estimated", "headline"),
    # Terms are defined otherwise since then (decision 23); what was measured is the same.
    *("terms", "lost", "slowest_rank", "exposed_comm_s", "ci95_exposed_comm_s"),
    "doubt 3",  # the halves of a window of few steps differ by chance
    # Times of collectives are means since then (decision 21), and their distribution was added.
    *("transfer_s", "wait_s", "points", "fits", "base_busbw_bytes_per_s", "new_busbw_bytes_per_s"),
    *("p5_s", "two_modes"),
)
ABLATIONS = {  # what was stored: without_communication, with_preloaded_input
    "none": (False, False),
    "noop_comm": (True, False),
    "preloaded": (False, True),
    "noop_comm+preloaded": (True, True),
}
# A short all-reduce ended at 256 MiB and ends at 64 MiB today; steps were not recorded to see who waits.
NEW_SINCE = {
    "scale": [("040b580ea87e", "alone 0", 0), ("040b580ea87e", "alone 0", 1), ("40ac7f502457", "alone 0", 0)]
}
STAGES = {  # by the hundreds of a launch's number
    0: None,
    1: Stage(kind="add", attempt=0),
    40: Stage(kind="remove", attempt=0),
    90: Stage(kind="confirm", attempt=0),
}
Place = tuple[str, str, int]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Copies of all old runs."""
    for name in COMMANDS:
        shutil.copytree(OLD_RUNS / name, tmp_path / "runs" / name)
    return Path("runs")


def expected(name: str) -> Any:
    return json.loads((OLD_RUNS / "expected" / name).read_text(encoding="utf-8"))


def facts(value: Any) -> Any:
    """Data without its sentences and settings."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in LEFT_OUT and not _is_sentence(part)}
        return {name: facts(part) for name, part in kept.items()}
    if isinstance(value, list):
        return [facts(part) for part in value if not _is_sentence(part)]
    return value


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str) and " " in value


def check_same(actual: Any, wanted: Any) -> None:
    """Both hold the same facts; numbers may differ by rounding."""
    now, before = _flat(facts(actual)), _flat(facts(wanted))
    assert now.keys() == before.keys()
    assert {path: (now[path], before[path]) for path in now if not _is_equal(now[path], before[path])} == {}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict | list):
        return {path: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    flat = {path: type(value)}
    for name, part in parts:
        flat |= _flat(part, f"{path}/{name}")
    return flat


def _is_equal(now: Any, before: Any) -> bool:
    if isinstance(now, float) and isinstance(before, float):
        return math.isclose(now, before, rel_tol=1e-12)
    return type(now) is type(before) and bool(now == before)


def written_by(report: Report, name: str) -> Any:
    """A file of a report, as data."""
    return json.loads(report.files[name]())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_and_the_curves_have_the_same_numbers(runs: Path, name: str) -> None:
    report = present(load_run(runs / name))
    check_same(written_by(report, "results.json"), expected("results.json")[name])
    files = {file.partition("/")[2]: wanted for file, wanted in expected("files.json").items()
             if file.startswith(f"{name}/") and "tuning" not in file}  # fmt: skip
    for file, wanted in files.items():
        check_same(written_by(report, file), wanted)


@pytest.mark.parametrize("name", SEARCHES)
def test_levers_have_the_same_winner_and_speeds(runs: Path, name: str) -> None:
    """The answer is the same; speeds of levers may be those of more launches today."""
    before = json.loads((runs / name / "tuning.json").read_text())
    tuning = written_by(present(load_run(runs / name)), "tuning.json")
    assert (tuning["winner"], tuning["recommended"]) == (before["winner"], before["recommended"])
    speeds = {tuple(row["levers"]): row["speedup"] for row in tuning["combinations"]}
    alone = {(lever["lever"],): lever["speedup"] for lever in before["tried"]}
    assert {levers: speeds[levers] for levers in alone} == pytest.approx(alone, rel=0.02)
    if before["confirmed"] is not None:
        assert tuning["confirmed"]["speedup"] == pytest.approx(before["confirmed"]["speedup"], rel=1e-9)
    drawn = chapter(gather((runs / name,), ReportOptions()))
    assert drawn is not None and drawn.figures


@pytest.mark.parametrize("name", COMMANDS)
def test_every_line_is_read_as_the_launch_it_was(runs: Path, name: str) -> None:
    run = load_run(runs / name)
    assert run.warnings == ()
    assert (run.record.verb, run.record.flags) == COMMANDS[name]
    assert {result.schema_version for result in run.results} == {"2.0"}
    launches = [[one.trial_id, one.launch, one.order, one.status, _ablations(one)] for one in run.results]
    before = expected("launches.json")[name]
    assert launches == [
        [*launch, None if stored is None else ABLATIONS[stored]] for *launch, stored in before
    ]
    assert all(result.trial.trial_id == result.trial_id for result in run.results)
    if name == "search":
        assert {result.launch // 100 for result in run.results} == set(STAGES)
        for result in run.results:
            assert result.stage == STAGES[result.launch // 100]
            assert result.round == (None if result.stage is None else result.launch % 100)


def _ablations(result: Result) -> tuple[bool, bool] | None:
    settings = result.settings
    assert "ablation" not in settings
    if "without_communication" not in settings:
        return None
    return settings["without_communication"], settings["with_preloaded_input"]


def test_renamed_values_keep_their_ids(runs: Path) -> None:
    for name, changed, trial_id in expected("renamed.json"):
        raw = _lines(OLD_RUNS / name)[0]
        _write_lines(runs / name, [{**raw, "settings": {**raw["settings"], **changed}, "trial_id": trial_id}])
        (result,) = load_run(runs / name).results
        assert result.trial.trial_id == trial_id
        assert not set(changed.values()) & {
            text for text in result.settings.values() if isinstance(text, str)
        }
        if "ablation" in changed:
            assert _ablations(result) == ABLATIONS[changed["ablation"]]


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def _write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "trials.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def study_of(folder: Path) -> Study:
    """The study that the comment in experiment.yaml names: these runs have no run.json."""
    assert not (folder / "run.json").exists()
    verb, flags = request_of_comment(folder / "experiment.yaml")
    kind = find_study(verb)
    assert kind is not None
    return kind.from_flags(flags)


def resumed(folder: Path, study: Study, lost: tuple[Result, ...] = ()) -> tuple[Report, list[Place]]:
    """The run continued on its own machine, and its new launches; those that were `lost` end as they did."""
    environment = json.loads((folder / "environment.json").read_text())
    waiting, watcher = list(lost), RecordingWatcher()

    def again(trial: Trial, launch: int) -> Outcome | None:
        result = next((result for result in waiting if result.trial_id == trial.trial_id), None)
        if result is None:
            return None
        waiting.remove(result)
        return Outcome(status=result.status, records=result.ranks, telemetry=result.telemetry)

    launcher = FakeLauncher(CostModel(), Machine.from_json(environment["machine"]), again)
    flags = {"output_dir": (Given(str(folder), "--output-dir"),)}
    request = Request(verb=study.verb, benchmark=study.benchmark, flags=flags, resume=True)
    report = run_study(prepare(study, request), launcher, watcher)
    return report, sorted(map(place_of, watcher.results))


def place_of(result: Result) -> Place:
    """The trial of a launch, its stage in a search, and its number there; levers alone had no stage."""
    stage = result.stage or Stage(kind="alone")
    number = result.launch if result.round is None else result.round
    return result.trial_id, f"{stage.kind} {stage.attempt}", number


@pytest.mark.parametrize(("name", "count"), [("comm", 1), ("memory", 1), ("scale", 4), ("train", 1)])
def test_what_is_missing_is_launched_and_nothing_else(runs: Path, name: str, count: int) -> None:
    lost = load_run(runs / name).results[-count:]
    _write_lines(runs / name, _lines(runs / name)[:-count])
    report, launched = resumed(runs / name, study_of(runs / name), lost)
    assert launched == sorted([*map(place_of, lost), *NEW_SINCE.get(name, [])])
    assert report.exit_code == 0
    if name not in NEW_SINCE:
        wanted = expected("results.json")[name]
        check_same({**written_by(report, "results.json"), "timestamp": wanted["timestamp"]}, wanted)
    record = load_run(runs / name).record
    assert (record.verb, record.flags) == COMMANDS[name]
    assert record.end is not None and record.end.why == "finished"


@pytest.mark.parametrize(("name", "lost"), [("search", 5), ("tune", 0)])
def test_an_old_search_is_continued_by_the_one_of_today(runs: Path, name: str, lost: int) -> None:
    lines = _lines(runs / name)
    _write_lines(runs / name, lines[: len(lines) - lost])
    before = load_run(runs / name).results
    made = load_run(OLD_RUNS / name).results[len(before) :]
    report, _ = resumed(runs / name, study_of(runs / name), made)
    assert report.exit_code == 0
    results = load_run(runs / name).results
    assert results[: len(before)] == before
    assert len({result.key for result in results}) == len(results)
    assert written_by(report, "tuning.json")["finished"] is True


def test_an_interruption_was_a_failure_with_a_reason_and_other_failures_stay(runs: Path) -> None:
    timed, recorded = _lines(runs / "train")
    for reason, status in (("rank 1 was interrupted", "failed"), ("interrupted by SIGINT", "interrupted")):
        _write_lines(runs / "train", [timed, {**recorded, "status": "failed", "reason": reason, "ranks": []}])
        (read,) = load_run(runs / "train").of_status(status)  # type: ignore[arg-type]
        assert read.trial_id == recorded["trial_id"]
    _, launched = resumed(runs / "train", study_of(runs / "train"), load_run(OLD_RUNS / "train").results)
    assert launched == [place_of(read)]
