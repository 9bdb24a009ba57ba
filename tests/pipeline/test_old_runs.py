"""Runs of the first version are read, compared and resumed as before; see tests/old_runs/README.md."""

import csv
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.collectives import collective_rows
from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.verdicts import NO_SPREAD
from scalescope.diagnose.diagnosis import diagnose
from scalescope.errors import BadInput
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import Given
from scalescope.launch.fake import CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.results.old_formats import bucket_bytes_of, node_differences_of, request_of_comment
from scalescope.results.result import Result, Stage
from scalescope.results.run import load_run
from scalescope.studies.comparison.compare import compare, lay_side_by_side
from scalescope.studies.execution import run_study
from scalescope.studies.request import Request
from scalescope.studies.stored import find_study, present
from scalescope.studies.study import Report, Study
from tests.builders.calling import called

from .recording import RecordingWatcher, summary_of

OLD_RUNS = Path(__file__).parent.parent / "old_runs"
NAMES = ("comm", "memory", "scale", "search", "train", "tune")
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "comm": ("comm", ()),
    "memory": ("memory", ()),
    "scale": ("scale", ()),
    "search": ("tune", ("--levers", "precision,jit", "--threshold", "3%", "--combine")),
    "train": ("train", ("--profile",)),
    "tune": ("tune", ("--levers", "bucket_cap_mb", "--threshold", "3%")),
}
SEARCHES = ("search", "tune")  # the search of `tune` is another one since then
COMBINING = {"search": (), "tune": ("--no-combine",)}  # said in every run since then
VERDICTS = {"same": "no difference", "no difference": "no difference"}  # what it was, what it is
ADDED_SINCE = (
    *("segments", "significance", "rows_of_one_run", "method", "communication_parts", "includes"),
    *("would_decide", "run_spread", "slowed_gpus", "hook_s"),
    *("step_waterfall", "whole_step", "cost_s", "estimated", "headline"),
)
# Terms are defined otherwise since then (decision 23); what was measured is the same.
DEFINED_ANEW = ("terms", "lost", "slowest_rank", "exposed_comm_s", "ci95_exposed_comm_s")
JUDGED_OTHERWISE = ("doubt 3",)  # the halves of a window of few steps differ by chance
# Times of collectives are means since then (decision 21), and what is known of their distribution was added.
MEANS_SINCE = (
    *("transfer_s", "wait_s", "points", "fits", "base_busbw_bytes_per_s", "new_busbw_bytes_per_s"),
    *("p5_s", "two_modes"),
)
LEFT_OUT = (
    *("settings", "schema_version", "advice", "base", "new"),
    *(*ADDED_SINCE, *DEFINED_ANEW, *JUDGED_OTHERWISE, *MEANS_SINCE),
)
ABLATIONS = {  # what was stored: without_communication, with_preloaded_input
    "none": (False, False),
    "noop_comm": (True, False),
    "preloaded": (False, True),
    "noop_comm+preloaded": (True, True),
}
# The short all-reduce of `scale` ended at 256 MiB when this run was made; it ends at 64 MiB today.
SHORTER_SINCE = ("40ac7f502457", "alone 0", 0)
# Steps were not recorded to see who waits for whom when this run was made.
RECORDED_SINCE = [("040b580ea87e", "alone 0", 0), ("040b580ea87e", "alone 0", 1)]
NEW_SINCE = {"scale": [*RECORDED_SINCE, SHORTER_SINCE]}
Place = tuple[str, str, int]
Cli = Callable[..., str]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Copies of all old runs."""
    for name in NAMES:
        shutil.copytree(OLD_RUNS / name, tmp_path / "runs" / name)
    return Path("runs")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls the command line, which must succeed without a warning; returns what it printed."""

    def call(*arguments: str) -> str:
        ended = called(capsys, *arguments)
        assert (ended.code, ended.err) == (0, "")
        assert "left out:" not in ended.out
        return str(ended.out)

    return call


def expected(name: str) -> Any:
    return json.loads((OLD_RUNS / "expected" / name).read_text(encoding="utf-8"))


def facts(value: Any) -> Any:
    """Data without its sentences and settings, with the verdict words of today."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in LEFT_OUT and not _is_sentence(part)}
        return {name: facts(part) for name, part in kept.items()}
    if isinstance(value, list):
        return [facts(part) for part in value if not _is_sentence(part)]
    return VERDICTS.get(value, value) if isinstance(value, str) else value


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str) and " " in value and value not in VERDICTS


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


def test_all_old_runs_are_listed(runs: Path, cli: Cli) -> None:
    listed = cli("list", str(runs))
    assert [name for name in NAMES if f"runs/{name}" not in listed and name not in listed.split()] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_is_explained(runs: Path, cli: Cli, name: str) -> None:
    assert cli("explain", "-v", str(runs / name)).strip()


def test_old_runs_are_reported_together(runs: Path, cli: Cli) -> None:
    printed = cli("report", str(runs), "--out", "out", "--format", "html,csv,tex,md,txt,json")
    assert "Report: out/report.html" in printed
    written = {str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()}
    tables = {
        f"tables/{name}" for name in ("comprehensive_summary.csv", "summary_table.md", "summary_table.tex")
    }
    assert written >= {"report.html", "report.json", "performance_report.txt", *tables}
    assert set(json.loads(Path("out/report.json").read_text())["runs"]) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_one_old_run_is_reported(runs: Path, cli: Cli, name: str) -> None:
    cli("report", str(runs / name), "--format", "html,csv,md,txt,json")
    assert (runs / name / "report.html").stat().st_size > 0


def test_figures_are_drawn_of_an_old_run(runs: Path, cli: Cli) -> None:
    cli("report", str(runs / "comm"), "--out", "out", "--format", "figures")
    drawn = {path.name for path in Path("out/figures").iterdir()}
    assert drawn >= {f"collectives.{ending}" for ending in ("png", "svg", "pdf")}


@pytest.mark.parametrize("name", ["comm", "scale", "search", "train", "tune"])
def test_an_old_run_is_compared_with_itself(runs: Path, cli: Cli, name: str) -> None:
    cli("compare", str(runs / name), str(runs / name), "--json", "data.json", "--markdown", "comment.md")
    assert json.loads(Path("data.json").read_text())["gate_missed"] is False
    assert Path("comment.md").read_text()


def test_old_runs_are_laid_side_by_side(runs: Path, cli: Cli) -> None:
    assert cli("compare", "--side-by-side", str(runs / "scale"), str(runs / "tune")).strip()
    assert cli("compare", *(str(runs / name) for name in ("scale", "tune", "train"))).strip()


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_has_the_same_numbers(runs: Path, name: str) -> None:
    check_same(written_by(present(load_run(runs / name)), "results.json"), expected("results.json")[name])


@pytest.mark.parametrize("file", [file for file in expected("files.json") if "tuning" not in file])
def test_curves_have_the_same_numbers(runs: Path, file: str) -> None:
    folder, _, name = file.partition("/")
    check_same(written_by(present(load_run(runs / folder)), name), expected("files.json")[file])


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


def test_the_winner_of_an_old_search_is_shown(runs: Path, cli: Cli) -> None:
    """By `explain` from its launches, and in the page from its file."""
    explained = cli("explain", str(runs / "search"))
    assert explained.strip().startswith("jit True + precision bf16 is faster: 1.79×")
    cli("report", str(runs / "search"), "--format", "html")
    page = (runs / "search" / "report.html").read_text(encoding="utf-8")
    assert "jit True + precision bf16 is" in page


@pytest.mark.parametrize("compared", expected("comparisons.json"))
def test_comparisons_have_the_same_numbers_and_verdicts(runs: Path, compared: str) -> None:
    base, new, threshold = compared.split()
    report = compare(runs / base, runs / new, float(threshold), spread=NO_SPREAD)
    check_same({**report.data, "exit_code": int(report.exit_code)}, expected("comparisons.json")[compared])


def test_runs_side_by_side_have_the_same_numbers(runs: Path) -> None:
    report = lay_side_by_side([runs / name for name in ("scale", "tune", "train")])
    check_same(report.data, expected("side_by_side.json"))


def test_the_table_of_a_report_has_the_same_numbers(runs: Path, cli: Cli) -> None:
    cli("report", str(runs), "--out", "out", "--format", "csv")
    with Path("out/tables/comprehensive_summary.csv").open(encoding="utf-8") as stream:
        rows = [_numbers(row) for row in csv.DictReader(stream)]
    check_same(rows, [_numbers(row) for row in expected("table.json")])


def _numbers(row: dict[str, str]) -> dict[str, float | str]:
    return {name: text if name == "trial_id" else _number(text) for name, text in row.items()}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_read_as_the_launch_it_was(runs: Path, name: str) -> None:
    run = load_run(runs / name)
    assert run.warnings == ()
    assert {result.schema_version for result in run.results} == {"2.0"}
    launches = [[one.trial_id, one.launch, one.order, one.status, _ablations(one)] for one in run.results]
    before = expected("launches.json")[name]
    assert launches == [
        [*launch, None if stored is None else ABLATIONS[stored]] for *launch, stored in before
    ]


def _ablations(result: Result) -> tuple[bool, bool] | None:
    settings = result.settings
    assert "ablation" not in settings
    if "without_communication" not in settings:
        return None
    return settings["without_communication"], settings["with_preloaded_input"]


@pytest.mark.parametrize("name", NAMES)
def test_trials_keep_their_ids(runs: Path, name: str) -> None:
    stored = [
        json.loads(line)["trial_id"] for line in (runs / name / "trials.jsonl").read_text().splitlines()
    ]
    assert [Trial(settings=result.settings).trial_id for result in load_run(runs / name).results] == stored


@pytest.mark.parametrize(("name", "changed", "trial_id"), expected("renamed.json"))
def test_renamed_values_keep_their_ids(runs: Path, name: str, changed: dict[str, str], trial_id: str) -> None:
    raw = _lines(runs / name)[0]
    _write_lines(runs / name, [{**raw, "settings": {**raw["settings"], **changed}, "trial_id": trial_id}])
    (result,) = load_run(runs / name).results
    assert result.trial.trial_id == trial_id
    assert not set(changed.values()) & {text for text in result.settings.values() if isinstance(text, str)}
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


class Resumed:
    """A run that is continued on its own machine; launches of a trial that were `lost` end as they did."""

    def __init__(self, folder: Path, lost: tuple[Result, ...] = ()) -> None:
        self.folder = folder
        self.watcher = RecordingWatcher()
        self._lost = list(lost)

    def by(self, study: Study, **asked: str) -> Report:
        environment = json.loads((self.folder / "environment.json").read_text())
        launcher = FakeLauncher(CostModel(), Machine.from_json(environment["machine"]), self._again)
        flags = {name: (Given(text, f"--{name}"),) for name, text in asked.items()}
        flags["output_dir"] = (Given(str(self.folder), "--output-dir"),)
        file = self.folder / "experiment.yaml" if asked else None
        request = Request(verb=study.verb, benchmark=study.benchmark, file=file, flags=flags, resume=True)
        return run_study(study, request, launcher, self.watcher)

    def _again(self, trial: Trial, launch: int) -> Outcome | None:
        lost = next((result for result in self._lost if result.trial_id == trial.trial_id), None)
        if lost is None:
            return None
        self._lost.remove(lost)
        return Outcome(status=lost.status, records=lost.ranks, telemetry=lost.telemetry)

    @property
    def launched(self) -> list[Place]:
        return sorted(map(place_of, self.watcher.results))


def place_of(result: Result) -> Place:
    """The trial of a launch, its stage in a search, and its number there; levers alone had no stage."""
    stage = result.stage or Stage(kind="alone")
    number = result.launch if result.round is None else result.round
    return result.trial_id, f"{stage.kind} {stage.attempt}", number


@pytest.mark.parametrize("name", NAMES)
def test_the_command_comes_from_the_comment_of_the_request(runs: Path, name: str) -> None:
    verb, flags = COMMANDS[name]
    record = load_run(runs / name).record
    assert (record.verb, record.flags) == (verb, flags)
    study = study_of(runs / name)
    assert (study.verb, study.flags()) == (verb, (*flags, *COMBINING.get(name, ())))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SEARCHES])
def test_a_complete_run_is_resumed_without_a_launch(runs: Path, name: str) -> None:
    resumed = Resumed(runs / name)
    assert resumed.by(study_of(runs / name)).exit_code == 0
    assert resumed.launched == NEW_SINCE.get(name, [])
    record = load_run(runs / name).record
    assert (record.verb, record.flags) == COMMANDS[name]
    assert record.end is not None and record.end.why == "finished"


def test_only_the_size_of_the_short_all_reduce_changed(runs: Path) -> None:
    resumed = Resumed(runs / "scale")
    resumed.by(study_of(runs / "scale"))
    (trial,) = [trial for trial, _ in resumed.watcher.launched if trial.benchmark == "comm"]
    stored = [result.trial_id for result in load_run(OLD_RUNS / "scale").results]
    assert trial.replace(max_bytes=1 << 28).trial_id in stored


@pytest.mark.parametrize(
    ("name", "count"),
    [("comm", 1), ("memory", 1), ("scale", 4), ("train", 1)],
)
def test_what_is_missing_is_launched_and_nothing_else(runs: Path, name: str, count: int) -> None:
    lost = load_run(runs / name).results[-count:]
    _write_lines(runs / name, _lines(runs / name)[:-count])
    resumed = Resumed(runs / name, lost)
    report = resumed.by(study_of(runs / name))
    assert resumed.launched == sorted([*map(place_of, lost), *NEW_SINCE.get(name, [])])
    assert report.exit_code == 0
    if name not in NEW_SINCE:
        wanted = expected("results.json")[name]
        check_same({**summary_of(report.path), "timestamp": wanted["timestamp"]}, wanted)


@pytest.mark.parametrize(
    ("name", "lost"), [("search", 0), ("search", 5), ("search", 10), ("tune", 0), ("tune", 3)]
)
def test_an_old_search_is_continued_by_the_one_of_today(runs: Path, name: str, lost: int) -> None:
    lines = _lines(runs / name)
    _write_lines(runs / name, lines[: len(lines) - lost])
    before = load_run(runs / name).results
    resumed = Resumed(runs / name, load_run(OLD_RUNS / name).results[len(before) :])
    report = resumed.by(study_of(runs / name))
    assert report.exit_code == 0
    results = load_run(runs / name).results
    assert results[: len(before)] == before
    kinds = {result.stage.kind for result in results[len(before) :] if result.stage is not None}
    assert kinds <= {"baseline", "facts", "explore", "refine", "confirm"}
    assert len({result.key for result in results}) == len(results)
    tuning = written_by(report, "tuning.json")
    assert tuning["finished"] is True
    record = load_run(runs / name).record
    assert record.end is not None and record.end.why == "finished"


DIFFERENT: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {  # flags of the verb, settings
    "comm": ((), {"max_bytes": "131072"}),
    "memory": ((), {"hidden_dim": "128"}),
    "scale": (("--no-waterfall",), {}),
    "search": (("--levers", "precision,jit", "--threshold", "3%", "--no-combine"), {}),
    "train": ((), {}),
    "tune": (("--levers", "bucket_cap_mb", "--threshold", "5%"), {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_resuming_with_a_different_flag_is_refused(runs: Path, name: str) -> None:
    flags, settings = DIFFERENT[name]
    resumed = Resumed(runs / name)
    with pytest.raises(BadInput, match=r"--resume: runs/\w+ was started with (a )?different"):
        resumed.by(type(study_of(runs / name)).from_flags(flags), **settings)
    assert resumed.launched == []
    assert not (runs / name / "run.json").exists()


def test_an_interruption_is_a_status_and_is_launched_again(runs: Path) -> None:
    folder = runs / "train"
    timed, recorded = _lines(folder)
    _write_lines(
        folder, [timed, {**recorded, "status": "failed", "reason": "interrupted by SIGINT", "ranks": []}]
    )
    (interrupted,) = load_run(folder).of_status("interrupted")
    assert interrupted.trial_id == recorded["trial_id"]
    resumed = Resumed(folder, load_run(OLD_RUNS / "train").results)
    assert resumed.by(study_of(folder)).exit_code == 0
    assert resumed.launched == [place_of(interrupted)]


def test_a_failure_stays_one(runs: Path) -> None:
    timed, recorded = _lines(runs / "train")
    _write_lines(
        runs / "train", [timed, {**recorded, "status": "failed", "reason": "rank 1 was interrupted"}]
    )
    (failed,) = load_run(runs / "train").of_status("failed")
    assert failed.trial_id == recorded["trial_id"]


def test_node_differences_are_read_from_sentences(runs: Path) -> None:
    path = runs / "scale" / "environment.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps({**environment, "node_differences": ["cores: 64 on n1, n2; 32 on n3"]}))
    run = load_run(runs / "scale")
    (difference,) = node_differences_of(run.environment)
    assert (difference.name, difference.hosts_by_value) == ("cores", {"64": ("n1", "n2"), "32": ("n3",)})
    assert "nodes differ" in {finding.rule for finding in diagnose(run).findings}


def test_bucket_sizes_are_read_from_a_counter(runs: Path) -> None:
    raw = _lines(runs / "train")[0]
    assert raw["ranks"][0]["counters"]["bucket_bytes"] == "35880"
    raw["ranks"][1]["counters"]["bucket_bytes"] = "35000,880"
    _write_lines(runs / "train", [raw])
    (result,) = load_run(runs / "train").results
    assert [bucket_bytes_of(rank) for rank in result.ranks] == [(35880,), (35000, 880)]


STAGES = {  # the hundreds of a launch's number
    0: None,
    1: Stage(kind="add", attempt=0),
    40: Stage(kind="remove", attempt=0),
    90: Stage(kind="confirm", attempt=0),
}


def test_launch_numbers_of_a_search_are_read_as_stages(runs: Path) -> None:
    results = load_run(runs / "search").results
    assert {result.launch // 100 for result in results} == set(STAGES)
    for result in results:
        assert result.stage == STAGES[result.launch // 100]
        assert result.round == (None if result.stage is None else result.launch % 100)


def test_curves_of_old_runs_are_means_of_what_they_stored(runs: Path) -> None:
    run = load_run(runs / "comm")
    (curve,) = written_by(present(run), "curve.json")["curves"]
    means = Curve.through([(row.size_bytes, row.time_s) for row in collective_rows(run.results)])
    assert [tuple(point) for point in curve["points"]] == [pytest.approx(point) for point in means.points]
