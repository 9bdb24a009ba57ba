"""`scalescope compare` as typed: flags, files and exit codes."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.builders.calling import called
from tests.builders.studies import scale
from tests.pipeline.recording import RecordingWatcher, ask
from tests.simulated.launcher import CostModel, FakeLauncher

from .conftest import Run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `fast` and `slow`, to be copied."""
    root = tmp_path_factory.mktemp("measured")
    for name, fixed_s in (("fast", 0.010), ("slow", 0.013)):
        request = ask("scale", output_dir=str(root / name), world_size=[1, 2], batch_size=10, repeats=3)
        model = CostModel(fixed_s=fixed_s, launch_noise=0.003)
        scale(request, FakeLauncher(model), RecordingWatcher(), waterfall=False)
    return root


@pytest.fixture
def run(
    measured: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Call `main` where there are the runs `fast` and `slow`; returns code, out and err."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True, symlinks=True)
    return partial(called, capsys, "compare")


def test_a_regression_ends_with_eight_and_writes_what_was_asked(run: Run, tmp_path: Path) -> None:
    ended = run("fast", "slow", "--json", "c.json", "--markdown", "c.md", "--html", "c.html")
    assert (ended.code, ended.err) == (8, "")
    assert "speed of slow ÷ fast" in (tmp_path / "c.html").read_text()
    assert ended.out.lstrip().startswith("3 of 3 configurations are slower by more than 3 %")
    assert json.loads((tmp_path / "c.json").read_text())["gate_missed"] is True
    assert (tmp_path / "c.md").read_text().startswith("3 of 3 configurations are slower")


def test_what_is_not_slower_ends_well(run: Run) -> None:
    assert run("slow", "fast").code == 0
    assert run("fast", "fast").code == 0
    assert run("fast", "slow", "--threshold", "40%").code == 0


def test_what_is_inconclusive_ends_well_unless_it_must_not(run: Run) -> None:
    hidden = ("fast", "slow", "--threshold", "22%")  # slower by 20 %, with what runs differ by themselves
    assert run("fast", "slow", "--threshold", "0.1%").code == 8
    assert run(*hidden).code == 0
    assert run("slow", "slow", "--fail-inconclusive", "--threshold", "0.01%").code == 6


def test_a_link_to_a_run_is_a_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("slow")
    ended = run("fast", "latest", "--json", "c.json")
    assert ended.code == 8
    assert json.loads((tmp_path / "c.json").read_text())["new"] == "slow"


@pytest.mark.parametrize("arguments", [("fast", "slow", "fast"), ("fast", "slow", "--side-by-side")])
def test_side_by_side_gates_nothing(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, "--json", "c.json", "--markdown", "c.md", "--html", "c.html")
    assert (ended.code, ended.err) == (0, "")
    assert "Efficiency by number of ranks" in (tmp_path / "c.html").read_text()
    assert "without a verdict" in ended.out
    assert len(json.loads((tmp_path / "c.json").read_text())["rows"]) >= 4
    assert "| ranks | batch | run |" in (tmp_path / "c.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fast", "runs/latest"), "compare: runs/latest: no run exists yet; give a run folder"),
        (
            ("fast", "--interleave"),
            "compare requires two runs: BASE and NEW; give NEW, or what to change with",
        ),
        (("fast", "slow", "--interleave", "--budget", "none"), "--budget: expected a time such as"),
        (("fast", "slow", "--window", "3s"), "--window requires --interleave"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert ended.err.lower().startswith(f"scalescope: {message}".lower()), ended.err


def test_other_hardware_ends_with_three_and_names_the_flag(run: Run, tmp_path: Path) -> None:
    environment_file = tmp_path / "slow" / "environment.json"
    recorded = json.loads(environment_file.read_text())
    recorded["machine"]["gpus"] = [{"index": 0, "name": "a GPU", "memory_bytes": 1 << 30, "uuid": "u"}]
    environment_file.write_text(json.dumps(recorded))
    ended = run("fast", "slow")
    assert (ended.code, ended.out) == (3, "")
    assert "gpus: none and 1 × a GPU" in ended.err and "--any-hardware" in ended.err
    assert run("fast", "slow", "--any-hardware").code == 8


def test_a_file_that_cannot_be_written_ends_with_seven(run: Run) -> None:
    ended = run("fast", "slow", "--json", "nowhere/c.json")
    assert ended.code == 7
    assert ended.err.startswith("scalescope: nowhere/c.json: could not be written")
