"""`predict` through the command line, for runs of the fake launcher."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.analysis.prediction import jobs
from scalescope.cli import app
from scalescope.report.chapters import chapters_of
from scalescope.results.ledger import ledger_file, read_ledger
from scalescope.results.other_load import OtherLoad
from scalescope.studies.report import ReportOptions, gather
from tests.builders.profiles import GRADIENT_BYTES, GRADIENTS, made_profiles
from tests.builders.studies import scale, train
from tests.simulated.costs import SimulatedScript
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

# Communication as the simulated network has it: one bucket of all gradients after the backward pass.
LATENCY_S, RATE = 1e-3, 1e9
EXCHANGE_S = LATENCY_S + GRADIENTS * GRADIENT_BYTES / RATE
MODEL = CostModel(
    fixed_s=0.010,
    per_sample_s=0.0002,
    exposed_comm_s={2: EXCHANGE_S, 4: EXCHANGE_S},
    latency_s=LATENCY_S,
    bytes_per_s=RATE,
)
Call = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module", autouse=True)
def profiled() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("scalescope.results.ledger.shipped_ledger", lambda: b"")
        patched.setattr(jobs, "profiles_of", made_profiles)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "run"
    measure(output_dir=str(path))
    return path


@pytest.fixture
def run(made: Path) -> None:
    """The folder `run` holds one, two and four ranks; the ledger of this test does not know it."""
    shutil.copytree(made, "run")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Call `predict`; returns code, out and err."""

    def run(*arguments: str) -> SimpleNamespace:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            app.main(["predict", *arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=leaving.value.code, out=out, err=err)

    return run


def measure(**settings: Any) -> RecordingWatcher:
    watcher = RecordingWatcher()
    asked = {"world_size": [1, 2, 4], "batch_size": [50], "repeats": 2, **settings}
    scale(ask("scale", **asked), FakeLauncher(MODEL), watcher)
    return watcher


def rows_of(file: Path) -> list[dict[str, Any]]:
    (prediction,) = json.loads(file.read_text())["predictions"]
    rows = prediction["rows"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.usefixtures("run")
def test_every_size_that_was_asked_for_has_its_row_and_those_measured_their_truth(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    ended = call(
        "run", "--world-size", "2,4,8,16,32,64,128,256,512,1024", "--json", "p.json", "--html", "p.html"
    )
    assert (ended.code, ended.err) == (0, "")
    assert "Predicted efficiency by number of ranks" in Path("p.html").read_text()
    rows = rows_of(Path("p.json"))
    assert [row["world_size"] for row in rows] == [2 << power for power in range(10)]
    for row in rows:
        for name in ("step_s", "samples_per_s", "efficiency", "exposed_comm_s", "memory_bytes"):
            low, high = row[f"ci90_{name}"]
            assert low <= row[name] <= high, name
        assert row["extrapolated"] == (row["world_size"] > 4) == bool(row["assumptions"])
        assert row["calibration"] and row["limit"]
    lines = ended.out.splitlines()
    table = lines[: next(number for number, line in enumerate(lines) if "worth it" in line.lower())]
    assert all(len(line) <= 40 for line in table[2:])
    shown = [line.split()[0] for line in table if line.strip()[:1].isdigit()]
    assert shown == ["2", "4", "8*", "16*", "32*", "64*", "128*", "256*", "512*", "1,024*"]
    assert "* extrapolated (8 to 1,024 ranks): all_reduce follows a ring from 4 ranks on" in " ".join(
        ended.out.split()
    )
    for row in rows[:2]:
        assert row["step_s"] == pytest.approx(0.020 + EXCHANGE_S)
        assert row["measured_step_s"] == pytest.approx(row["step_s"])
        assert row["exposed_comm_s"] == pytest.approx(EXCHANGE_S)
        assert row["efficiency"] == pytest.approx(0.020 / row["step_s"])


def test_flags_change_the_setup(call: Call, tmp_path: Path) -> None:
    measure(batch_size=[50, 100])
    call("run", "--world-size", "8", "--json", "plain.json", "--batch-size", "50")
    flags = (
        "--batch-size",
        "200",
        "--comm-hook",
        "bf16",
        "--accumulation-steps",
        "2",
        "--bucket-cap-mb",
        "1",
    )
    ended = call("run", "--world-size", "8", *flags, "--gpu-hour-price", "2.5", "--json", "p.json")
    assert ended.code == 0
    (row,), (plain,) = rows_of(tmp_path / "p.json"), rows_of(tmp_path / "plain.json")
    assert row["samples_per_step"] == 200 * 2 * 8
    setup = row["setup"]
    assert (setup["comm_hook"], setup["accumulation_steps"], setup["bucket_cap_mb"]) == ("bf16", 2, 1.0)
    assert row["exposed_comm_s"] < plain["exposed_comm_s"]
    assert row["measured_step_s"] is None
    hours = 1e6 / row["samples_per_s"] / 3600
    assert row["cost_per_million_samples"] == pytest.approx(hours * 8 * 2.5)
    assert "cost per 1M samples" in ended.out


@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
@pytest.mark.usefixtures("run")
def test_another_strategy(call: Call, tmp_path: Path, strategy: str) -> None:
    assert call("run", "--world-size", "8", "--strategy", strategy, "--json", "p.json").code == 0
    (row,) = rows_of(tmp_path / "p.json")
    assert row["setup"]["strategy"] == strategy
    assert row["kind"]["strategy"] == strategy


def test_a_named_network_needs_no_measured_times(call: Call, tmp_path: Path) -> None:
    train(ask("train", world_size=1, batch_size=50), FakeLauncher(MODEL), RecordingWatcher())
    refused = call("run", "--world-size", "8")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        "scalescope: run has no times of collectives: --network nvlink4 assumes them, "
        "scalescope comm measures them\n"
    )
    flags = ("--network", "nvlink4", "--gpus-per-node", "8", "--nics-per-node", "8")
    assert call("run", "--world-size", "8,16", *flags, "--json", "p.json").code == 0
    first, second = rows_of(tmp_path / "p.json")
    assert first["kind"]["curve"] == second["kind"]["curve"] == "assumed"
    assert second["setup"]["layout"] == {
        "ranks_per_node": 8,
        "cards_per_node": 8,
        "cores_per_node": None,
    }
    assert not read_ledger(shipped=False).entries


@pytest.mark.usefixtures("run")
def test_what_if_ranks_changes(call: Call, tmp_path: Path) -> None:
    call("run", "--json", "p.json")  # without sizes it goes on from what was measured
    assert [row["world_size"] for row in rows_of(tmp_path / "p.json")] == [2, 4, 8, 16, 32, 64]
    ended = call("run", "--world-size", "8", "--what-if", "--json", "p.json")
    (prediction,) = json.loads((tmp_path / "p.json").read_text())["predictions"]
    gains = [change["gain"] for change in prediction["what_if"]]
    assert gains == sorted(gains, reverse=True) and prediction["what_if_world_size"] == 8
    assert "What if, on 8 ranks" in ended.out and "--comm-hook bf16" in ended.out


def test_scale_adds_what_it_would_have_predicted_to_the_ledger(call: Call) -> None:
    measure()
    entries = read_ledger(shipped=False).entries
    kinds = sorted((entry.world_size, entry.kind.curve, entry.curve_ranks) for entry in entries)
    assert kinds == [(2, "same ranks", 2), (4, "other ranks", 2), (4, "same ranks", 4)]
    same = [entry for entry in entries if entry.kind.curve == "same ranks"]
    assert all(entry.error == pytest.approx(0.0, abs=1e-6) and entry.is_covered for entry in same)
    assert all(entry.exposed_error == pytest.approx(0.0, abs=1e-6) for entry in same)
    before = ledger_file().read_bytes()
    assert call("run").code == 0
    assert ledger_file().read_bytes() == before  # the same predictions of the same measurements


def test_the_ledger_is_shown_by_kind_with_its_coverage(call: Call, tmp_path: Path) -> None:
    empty = call("--ledger")
    assert (empty.code, empty.err) == (0, "")
    assert "No prediction has been checked against a measurement yet" in empty.out
    measure()
    ended = call("--ledger", "--json", "l.json")
    assert "ddp over gloo, curve of as many ranks" in ended.out and "in interval" in ended.out
    content = json.loads((tmp_path / "l.json").read_text())
    by_kind = {row["kind"]: row for row in content["kinds"]}
    assert by_kind["all"]["n"] == 3
    same, fitted = (by_kind[f"ddp over gloo, curve of as many ranks{end}"] for end in ("", ", fitted"))
    assert (same["n"], fitted["n"], same["coverage"]) == (1, 1, 1.0)
    assert same["mean_abs_error"] == pytest.approx(0.0, abs=1e-6)
    assert same["ci95_coverage"][0] < 0.9 < same["ci95_coverage"][1] == 1.0


def test_errors_of_the_ledger_make_the_intervals(call: Call, tmp_path: Path) -> None:
    measure()
    (line, *_) = ledger_file().read_text().splitlines()
    for number in range(12):
        raw = {
            **json.loads(line),
            "kind": {**json.loads(line)["kind"], "is_fitted": True},  # as two ranks are by their own run
            "trial_id": f"t{number}",
            "measured_s": json.loads(line)["predicted_s"] * 1.05,
        }
        with ledger_file().open("a") as stream:
            stream.write(json.dumps(raw) + "\n")
    call("run", "--world-size", "2", "--json", "p.json")
    (row,) = rows_of(tmp_path / "p.json")
    assert row["ci90_step_s"][1] == pytest.approx(row["step_s"] * 1.05)
    assert "of such jobs on this machine" in row["calibration"]


def test_a_ledger_that_cannot_be_written_is_a_warning(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SCALESCOPE_LEDGER", str(tmp_path / "file" / "ledger.jsonl"))
    watcher = measure()
    assert any("were not added to the ledger" in note for note in watcher.notes)
    ended = call("run")
    assert ended.code == 0 and "were not added to the ledger" in ended.err


@pytest.mark.fault(54)
def test_a_damaged_ledger_costs_a_study_one_note(call: Call) -> None:
    file = ledger_file()
    assert file is not None
    measure()
    (line, *_) = file.read_text().splitlines()
    file.write_text(line.replace('"world_size":2', '"world_size":1e999', 1) + "\n")
    watcher = measure(output_dir="again")
    (note,) = [note for note in watcher.notes if "damaged line" in note]
    assert note.startswith(f"{file}: 1 damaged line left out; the first: line 1: world_size: ")
    assert summary_of(Path("again"))["results"]["scaling"]
    assert call("again").err.count("damaged line") == 1


@pytest.mark.fault(54)
def test_what_was_measured_is_stored_whatever_fails_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OverflowError

    monkeypatch.setattr("scalescope.report.analyzed_run.read_ledger", fail)
    with pytest.raises(OverflowError):
        measure()
    training = summary_of(Path("run"))["results"]["training"]
    assert {row["world_size"] for row in training} == {1, 2, 4}


@pytest.mark.usefixtures("run")
def test_a_run_without_a_profile_names_the_command_and_what_could_not_be_read(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "profiles_of", lambda run: ())
    ended = call("run")
    assert (ended.code, ended.err) == (
        2,
        "scalescope: run has no profile of one rank: "
        "scalescope train --workload mlp --world-size 1 measures it\n",
    )
    trials = Path("run/trials.jsonl")
    trials.write_text(trials.read_text().replace('"rank":0', '"rank":"0.5"', 1))
    refused = call("run")
    assert refused.code == 2
    assert "no profile of one rank" in refused.err and "run/trials.jsonl:1: left out" in refused.err


@pytest.mark.fault(54)
def test_without_a_home_folder_one_note_says_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalescope.results.ledger.ledger_file", lambda: None)
    watcher = measure()
    assert sum("no home folder" in note for note in watcher.notes) == 1
    assert call("run").err.count("no home folder") == 1


def test_scale_shows_larger_sizes_and_stores_them(call: Call) -> None:
    watcher = RecordingWatcher()
    report = scale(ask("scale", world_size=[1, 2], batch_size=50), FakeLauncher(MODEL), watcher)
    titles = [section.title for section in report.sections]
    (section,) = [part for part in report.sections if (part.title or "").startswith("Predicted larger sizes")]
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == ["4*", "8*", "16*"]
    assert not any("Gustafson" in (title or "") for title in titles)
    (prediction,) = summary_of(report.path)["results"]["predictions"]
    assert [row["world_size"] for row in prediction["rows"]] == [2, 4, 8, 16]


def test_a_run_that_contradicts_its_prediction_says_so_first_and_predicts_nothing_beyond(
    call: Call, tmp_path: Path
) -> None:
    """Two ranks take 0.4 s longer than their profile and the network explain."""
    slow = dataclasses.replace(MODEL, exposed_comm_s={2: 0.4})
    busy = FakeLauncher(slow, loads=lambda trial, attempt: OtherLoad(cores=2, other_cores=1.5))
    report = scale(ask("scale", world_size=[1, 2], batch_size=50), busy, RecordingWatcher())
    lines = [line for section in report.sections for line in section.lines]
    (said,) = [line for line in lines if "contradicts the prediction" in line]
    assert said.startswith("Measured 420 ms on 2 ranks, predicted ")
    assert said.endswith("Other processes used the machine meanwhile: measure again when it is idle.")
    assert not any((section.title or "").startswith("Predicted larger") for section in report.sections)
    (stored,) = summary_of(report.path)["results"]["predictions"]
    assert [row["world_size"] for row in stored["rows"]] == [2] and stored["worth_ranks"] is None
    asked = ("--world-size", "8,16", "--what-if", "--network", "nvlink4")
    for flags in ((), asked):
        ended = call("run", *flags, "--json", "p.json")
        assert ended.code == 0
        assert " ".join(ended.out.split()).startswith("Measured 420 ms on 2 ranks, predicted ")
        assert "worth it" not in ended.out and "What if" not in ended.out and "added ranks" not in ended.out
        (prediction,) = json.loads((tmp_path / "p.json").read_text())["predictions"]
        assert [row["world_size"] for row in prediction["rows"]] == [2]
        assert prediction["contradiction"]["had_other_load"] is True
    (chapter,) = [
        part
        for part in chapters_of(gather((report.path,), ReportOptions()))
        if part.title == "Predicted on more ranks"
    ]
    assert chapter.sections[0].lines == (said,) and not chapter.figures


def test_tokens_of_a_command_are_called_tokens(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = dataclasses.replace(MODEL, script=SimulatedScript(unit="tokens", samples=50))
    asked = ask("scale", command="torchrun --nproc-per-node={world_size} train.py", world_size=[1, 2])
    report = scale(asked, FakeLauncher(model), RecordingWatcher())
    headings = {name for section in report.sections if section.table for name in section.table.columns}
    ended = call("run", "--what-if", "--gpu-hour-price", "2")
    assert "tokens/s" in headings and "tokens/s" in ended.out and "cost per 1M tokens" in ended.out
    assert "samples/s" not in headings and "samples" not in ended.out


def test_scale_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "profiles_of", lambda run: ())
    report = scale(ask("scale", world_size=[1, 2], batch_size=50), FakeLauncher(MODEL), RecordingWatcher())
    lines = [line for section in report.sections for line in section.lines]
    assert "Larger sizes are not predicted: this run has no profile of one rank." in lines
    assert "predictions" not in summary_of(report.path)["results"]


def test_the_page_has_the_band_and_the_timeline(made: Path) -> None:
    chapters = {chapter.title: chapter for chapter in chapters_of(gather((made,), ReportOptions()))}
    band, timeline = chapters["Predicted on more ranks"].figures
    assert "predicted, with its 90 % interval" in {series.label for series in band.panels[0].series}
    assert timeline.title.startswith("One predicted step on 4 ranks")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none",), "predict: none: no such run folder; scalescope list shows all runs"),
        ((), "predict: runs/latest: no run exists yet; give a run folder, or create one: scalescope scale"),
        (("empty",), "predict: empty is not a run folder; scalescope list shows all runs"),
        (
            ("run", "--world-size", "2,x"),
            "--world-size: expected numbers up to 1,000,000 such as 2,4,8, got 'x'",
        ),
        (
            ("run", "--world-size", "1000001"),
            "--world-size: expected numbers up to 1,000,000 such as 2,4,8, got '1000001'",
        ),
        (
            ("run", "--world-size", "0"),
            "--world-size: expected numbers up to 1,000,000 such as 2,4,8, got '0'",
        ),
        (
            ("run", "--world-size", ",".join(map(str, range(1, 258)))),
            "--world-size: expected at most 256 numbers, got 257",
        ),
        (("run", "--nics-per-node", "2"), "--nics-per-node requires --gpus-per-node"),
        (("run", "--ledger"), "--ledger shows all runs and cannot be used with RUN"),
        (("run", "--network", "none.json"), "--network none.json: no such file or run folder"),
    ],
)
@pytest.mark.usefixtures("run")
def test_wrong_input_is_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    ended = call(*arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", f"scalescope: {message}\n")
