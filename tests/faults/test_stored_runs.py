"""Run folders that a stranger made: links, devices, bombs, and records that do not fit together."""

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.results.run import load_run
from scalescope.results.run_folder import RunFolder
from scalescope.studies import running
from scalescope.studies.runs import resuming
from tests.builders.calling import called
from tests.builders.studies import scale, train
from tests.faults.conftest import Seen
from tests.pipeline.recording import RecordingWatcher, ask
from tests.simulated.launcher import CostModel, FakeLauncher

MODEL = CostModel(exposed_comm_s={2: 0.004})
SECRET = "content-of-a-file-outside"
Cli = Callable[..., SimpleNamespace]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line; what it launches is simulated, and pages have no drawings."""
    monkeypatch.setattr(running, "_launcher_for", lambda *_: FakeLauncher(MODEL))
    monkeypatch.setattr(resuming, "machine_here", dict)
    monkeypatch.setattr("scalescope.report.render.page.svg_for_page", lambda figure: "<svg></svg>")

    def call(*arguments: object) -> SimpleNamespace:
        ended = called(capsys, *arguments)
        assert "Traceback" not in ended.err
        return ended

    return call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that is not finished, as a stranger may send it."""
    path = tmp_path / "runs" / "run"
    scale(
        ask("scale", output_dir=str(path), world_size=[1, 2], repeats=2),
        FakeLauncher(MODEL),
        RecordingWatcher(),
    )
    lines = (path / "trials.jsonl").read_bytes().splitlines(keepends=True)
    (path / "trials.jsonl").write_bytes(b"".join(lines[:-1]))
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**record, "end": None}))
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What nothing in a run folder may lead to."""
    folder = tmp_path / "outside"
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_text(json.dumps({"name": SECRET}))
    return folder


def _state(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def _replace_by_link(path: Path, target: Path | str) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


FILES = ("trials.jsonl", "experiment.yaml", "environment.json", "run.json", "results.json", ".lock")
FOLDERS = ("figures", "tables", "traces", "ranks", "logs", "slurm")


@pytest.mark.fault(41)
@pytest.mark.parametrize("names", [*((name,) for name in FILES), FOLDERS], ids=",".join)
def test_links_are_neither_read_nor_written(
    cli: Cli, run: Path, outside: Path, seen: Seen, names: tuple[str, ...]
) -> None:
    for name in names:
        _replace_by_link(run / name, outside / ("folder" if name in FOLDERS else "file"))
    before = _state(outside)
    codes = {}
    for words in (("list", run.parent), ("report", run), ("resume", run)):
        ended = cli(*words)
        codes[words[0]] = ended.code
        assert SECRET not in ended.out + ended.err
        assert ended.code in (0, 2, 7), ended.err
    assert codes["resume"] == 7
    assert _state(outside) == before
    written = [path.read_text() for path in run.glob("report.*") if not path.is_symlink()]
    assert not any(SECRET in text for text in written)
    seen(f"{', '.join(names)} as a link: not followed; report {codes['report']}, resume {codes['resume']}")


@pytest.mark.fault(41)
def test_a_link_among_rank_files_ends_a_resume(cli: Cli, run: Path, outside: Path, seen: Seen) -> None:
    (run / "logs" / "x.log").symlink_to(outside / "file")
    ended = cli("resume", run)
    assert (ended.code, "x.log is a link" in ended.err) == (7, True)
    seen("resume: code 7 names the link")


@pytest.mark.fault(41)
def test_a_run_folder_that_is_a_link_itself_works(cli: Cli, run: Path, seen: Seen) -> None:
    latest = run.parent / "latest"
    latest.symlink_to(run.name)
    codes = [cli(verb, latest).code for verb in ("explain", "resume")]
    assert codes == [0, 0]
    assert len(load_run(run).results) == len(load_run(latest).results)
    seen("runs/latest is explained and resumed")


def _make_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _make_endless(path: Path) -> None:
    _replace_by_link(path, "/dev/zero")


def _make_large(path: Path) -> None:
    with path.open("ab") as stream:
        stream.truncate(1 << 40)  # takes no room on the disk


@pytest.mark.fault(41)
@pytest.mark.parametrize("make", [_make_fifo, _make_endless, _make_large])
@pytest.mark.parametrize("name", ["environment.json", "run.json", "results.json", "experiment.yaml"])
def test_what_never_ends_is_not_waited_for(
    cli: Cli, run: Path, seen: Seen, make: Callable[[Path], None], name: str
) -> None:
    make(run / name)
    assert cli("list", run.parent).code == 0
    ended = cli("explain", run)
    assert ended.code == 0
    if name in ("environment.json", "run.json"):
        assert f"{name}: left out: " in "".join(ended.out.split("\n"))
    seen(f"{name}: left out with a warning, the others render")


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "trace", ["../../outside/trace.json.gz", "/dev/zero", "t" * 300, "traces/bomb.json.gz"]
)
def test_traces_stay_inside_and_small(
    cli: Cli, tmp_path: Path, outside: Path, seen: Seen, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "traced"
    shutil.copytree(Path(__file__).parent.parent / "stored_runs" / "train", run)
    monkeypatch.setattr("scalescope.results.traces.events.LARGEST_TRACE_BYTES", 1 << 20)
    name = f'{{"traceEvents": [{{"ph": "X", "ts": 1, "dur": 1, "name": "{SECRET}"}}]}}'
    (outside / "trace.json.gz").write_bytes(gzip.compress(name.encode()))
    (run / "traces" / "bomb.json.gz").write_bytes(gzip.compress(b" " * 50_000_000))
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    traced = [record for line in lines for record in line["ranks"] if "trace" in record["counters"]]
    assert traced
    for record in traced:
        record["counters"]["trace"] = trace
    (run / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = cli("explain", run)
    assert ended.code == 0
    assert SECRET not in ended.out
    assert "cannot be read" in " ".join(ended.out.split())
    seen("a trace outside, endless or 50 MB large when unpacked: named, not read")


@pytest.mark.fault(41)
@pytest.mark.parametrize("verb", ["explain", "report", "list", "resume"])
def test_a_name_of_300_characters_is_refused(cli: Cli, seen: Seen, verb: str) -> None:
    ended = cli(verb, "n" * 300)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    seen("a name of 300 characters: code 2, one line")


@pytest.mark.fault(42)
def test_a_result_whose_id_is_not_that_of_its_settings_is_left_out(cli: Cli, run: Path, seen: Seen) -> None:
    lines = (run / "trials.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    lines[0] = json.dumps({**first, "trial_id": "0123456789ab"})
    (run / "trials.jsonl").write_text("\n".join(lines) + "\n")
    ended = cli("report", run)
    assert ended.code == 0
    assert "trials.jsonl:1: left out: trial_id" in ended.err
    assert len(load_run(run).results) == len(lines) - 1
    assert cli("resume", run).code == 0  # measures again what is left out
    assert load_run(run).of_status("ok")[-1].trial_id
    seen("the line is left out with a warning, the others render, resume measures it again")


ODD: tuple[Any, ...] = (None, True, -1, 10**30, 1e300, "", "text", [], {}, [{}], {"a": []}, "\ud800")


@pytest.mark.fault(42)
def test_any_field_of_any_type_gives_no_traceback(cli: Cli, run: Path, tmp_path: Path, seen: Seen) -> None:
    rng = random.Random(42)
    changed = 0
    for name in ("environment.json", "run.json", "results.json"):
        record = json.loads((run / name).read_text())
        for key in rng.sample(sorted(record), min(4, len(record))):
            copy = tmp_path / f"copy-{changed}"
            shutil.copytree(run, copy)
            (copy / name).write_text(json.dumps({**record, key: rng.choice(ODD)}))
            assert cli("explain", copy).code in (0, 2)
            assert cli("list", copy).code == 0
            changed += 1
    assert changed >= 10
    seen(f"{changed} changed fields: code 0 or 2, no traceback")


@pytest.mark.fault(42)
def test_removed_results_are_noticed_and_written_back(tmp_path: Path, cli: Cli, seen: Seen) -> None:
    """A run whose results are deleted while it measures."""
    path = tmp_path / "run"

    class Deleting(FakeLauncher):
        """Somebody cleans up during the third launch."""

        def launch(self, trial: Any, launch: int, folder: RunFolder, *others: Any, **named: Any) -> Any:
            if len(self.launched) == 2:
                (path / "trials.jsonl").unlink()
            return super().launch(trial, launch, folder, *others, **named)

    with pytest.raises(Exception, match=r"trials\.jsonl was removed while the run measured") as caught:
        train(ask("train", output_dir=str(path), repeats=4), Deleting(MODEL), RecordingWatcher())
    assert caught.value.exit_code == 7  # type: ignore[attr-defined]
    assert len(load_run(path).results) == 3
    seen("code 7 names trials.jsonl; all 3 results are written back")
