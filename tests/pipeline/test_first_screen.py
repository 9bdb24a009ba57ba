"""What a verb prints first: eight columns, one verdict, and only settings that are not defaults."""

import json
import re
from pathlib import Path

import pytest

from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.scaling.sections import table_section
from scalescope.report.varied import changed_settings
from scalescope.studies import running
from tests.builders.calling import called
from tests.builders.studies import scale
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask

FIRST_COLUMNS = (
    "ranks",
    "batch",
    "step (ms)",
    "samples/s",
    "speedup",
    "efficiency",
    "comm share",
    "verdict",
)
SLOW = CostModel(exposed_comm_s={2: 0.4})
SHORT = ("--batch-size", "50", "--steps-per-epoch", "13", "--warmup-steps", "3", "--output-dir", "out")


@pytest.fixture(autouse=True)
def fake_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "LocalLauncher", lambda: FakeLauncher(SLOW, TWO_CORES))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    ended = called(capsys, *words)
    assert ended.code == 0
    return str(ended.out)


@pytest.mark.parametrize(
    "words",
    [
        ("scale", "--world-size", "1,2", "--repeats", "2"),
        ("run", "--world-size", "1,2", "--repeats", "2", "-v"),
        ("train", "--repeats", "2", "-v"),
        ("tune", "--levers", "bucket_cap_mb", "--world-size", "2"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.usefixtures("without_page")
def test_the_verdict_is_printed_once(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    text = printed(capsys, *words, *SHORT)
    verdict = re.search(r"^In short: (.*)$", text, re.MULTILINE)
    assert verdict is not None
    assert text.count(verdict[1]) == 1
    assert text.count("So far") <= 2  # as this is no terminal


def test_the_scaling_table_shows_eight_columns_each_in_one_unit_and_the_rest_on_request() -> None:
    asked = ask("scale", world_size=[1, 2], batch_size=[1, 5000])
    run = scale(asked, FakeLauncher(SLOW), RecordingWatcher()).run
    assert run is not None
    table = table_section(AnalyzedRun(run).rows).table
    assert table is not None
    assert tuple(name for name in table.columns if name not in table.expert) == FIRST_COLUMNS
    for name, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        units = {re.sub(r"[~\d.,−\[\] ]|to|—", "", cell) for cell in cells} - {""}
        assert len(units) <= 1 or name == "verdict", (name, cells)


def test_a_configuration_is_shown_as_what_differs_from_the_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "train", *SHORT, "--precision", "bf16", "--lr", "0.5", "--hidden-dim", "1024")
    (config,) = re.findall(r"^Config +: (.*)$", text, re.MULTILINE)
    assert config == "batch_size 50, lr 0.5, precision bf16"


def test_everything_else_is_there_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "train", *SHORT, "-v")
    (settings,) = re.findall(r"^All settings +: (.*)$", text, re.MULTILINE)
    assert json.loads(settings)["batch_size"] == 50
    assert re.search(r"^Median step time +:", text, re.MULTILINE)


@pytest.mark.parametrize("workload", ["mlp", "transformer"])
def test_a_trial_of_defaults_has_no_changed_settings(workload: str) -> None:
    asked = ask("scale", world_size=[1, 2], batch_size=32, workload=workload, warmup_steps=5)
    run = scale(asked, FakeLauncher(SLOW), RecordingWatcher()).run
    assert run is not None
    trained = [result.trial for result in run.results if result.trial.is_training]
    changed = {name for trial in trained for name in changed_settings(trial)}
    assert changed <= {"workload", "batch_size"}
