"""`scalescope resume`: every verb goes on from its stored request, with its flags; refusals start nothing."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.experiment.machine import Machine
from scalescope.experiment.record import to_yaml
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.run import load_run
from scalescope.results.run_folder import RunFolder
from scalescope.studies import running
from scalescope.studies.runs import resuming
from tests.builders.calling import called
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import ask_benchmark

MODEL = CostModel(exposed_comm_s={2: 0.004})
SMALL = ("--steps-per-epoch=8", "--warmup-steps=3", "--device=cpu")
Cli = Callable[..., SimpleNamespace]
COMMANDS = {
    "train": ("train", *SMALL, "--batch-size=4,8", "--profile", "--repeats=2"),
    "scale": ("scale", *SMALL, "--world-size=1,2", "--batch-size=8", "--no-waterfall", "--repeats=2"),
    "run": ("run", "--benchmark=training", "--iters=5", "--device=cpu", "--batch-size=8", "--repeats=2"),
    "tune": ("tune", *SMALL, "--world-size=2", "--levers=bucket_cap_mb", "--threshold=5%", "--repeats=3"),
    "comm": ("comm", "--world-size=2", "--min-busbw=1kB/s", "--json-nccl=nccl out.json", "--repeats=2"),
    "memory": ("memory", "--device=cpu", "--batch-size=2,4"),
}


class Launchers:
    """Makes the launchers of commands; the first `lost` launches of each fail."""

    def __init__(self) -> None:
        self.machine: Machine = TWO_CORES
        self.lost = 0
        self.made: list[FakeLauncher] = []

    def __call__(self, *_: Any) -> FakeLauncher:
        count = self.lost

        def outcome(trial: Trial, launch: int) -> Outcome | None:
            nonlocal count
            count -= 1
            if trial.benchmark == "profile" and count < 0:
                return Outcome(status="ok")  # nothing simulates a trace
            return Outcome(status="failed", reason="lost") if count >= 0 else None

        self.made.append(FakeLauncher(MODEL, self.machine, outcomes=outcome))
        return self.made[-1]

    @property
    def launched(self) -> list[tuple[str, int]]:
        return self.made[-1].launched


@pytest.fixture
def launchers(monkeypatch: pytest.MonkeyPatch) -> Launchers:
    launchers = Launchers()
    monkeypatch.setattr(running, "_launcher_for", launchers)
    monkeypatch.setattr(resuming, "machine_here", dict)
    monkeypatch.setattr("scalescope.studies.report.page_of", lambda run: "")
    return launchers


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], launchers: Launchers) -> Cli:
    def call(*arguments: str) -> SimpleNamespace:
        return called(capsys, *arguments)

    return call


# A lever that fails is an answer, and a baseline is launched again at once; see test_tune.py.
@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb != "tune"])
def test_resume_continues_any_verb_with_its_flags(
    cli: Cli, launchers: Launchers, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launchers.lost = 1
    cli(*COMMANDS[verb], "--output-dir=my run")
    before, launched = load_run("my run"), len(launchers.launched)
    lost = {result.key for result in before.of_status("failed")}
    assert len(lost) == 1 and launched > 1
    launchers.lost = 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = cli("resume", "../my run")
    assert (resumed.code, resumed.err) == (0, "")
    assert lost <= set(launchers.launched)
    answered = {result.key for result in before.of_status("ok")}
    assert not answered & set(launchers.launched)
    now = load_run(tmp_path / "my run")
    assert not now.of_status("failed")
    assert (now.record.flags, now.record.started_at) == (before.record.flags, before.record.started_at)
    assert now.record.directory == str(tmp_path)
    refused = cli("resume", str(tmp_path / "my run"))
    assert (refused.code, "is finished" in refused.err) == (2, True)


def test_the_flags_of_comm_are_kept(cli: Cli, launchers: Launchers, tmp_path: Path) -> None:
    launchers.lost = 1
    cli("comm", "--world-size=2", "--min-busbw=900GB/s", "--json-nccl=out.json", "--output-dir=run")
    launchers.lost = 0
    assert cli("resume", "run").code == 8  # the gate is looked at again
    assert json.loads((tmp_path / "out.json").read_text())
    assert load_run("run").record.flags == (
        "--min-busbw",
        "900000000000.0B/s",
        "--json-nccl",
        str(tmp_path / "out.json"),
    )
    assert cli("comm", "--world-size=2", "--resume", "--output-dir=run").code == 0  # a gate may be left out


def test_resume_may_change_repeats_and_budget_alone(cli: Cli, launchers: Launchers) -> None:
    cli("train", *SMALL, "--batch-size=4", "--output-dir=run")
    assert cli("resume", "run", "--repeats=3", "--budget=1h").code == 0
    assert [launch for _, launch in launchers.launched] == [1, 2]
    asked = Path("run/experiment.yaml").read_text()
    assert "repeats: 3\n" in asked and "budget: 3600.0\n" in asked
    count = len(launchers.made)
    refused = cli("resume", "run", "--batch-size=8")
    assert (refused.code, "no such option --batch-size" in refused.err) == (2, True)
    assert cli("resume", "run", "--repeats=0").code == 2
    assert "is finished" in cli("resume", "run", "--repeats=3").err
    assert len(launchers.made) == count


def test_refusals_start_no_ranks(cli: Cli, launchers: Launchers, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, why in (
        ("nowhere", "no such run folder"),
        ("empty", "contains no run"),
        ("file", "no such run"),
    ):
        refused = cli("resume", name)
        assert (refused.code, refused.out) == (2, "")
        assert why in refused.err
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported" / "trials.jsonl").write_text("")
    assert "does not record which command created it" in cli("resume", "imported").err
    assert launchers.made == []


def test_a_run_that_is_being_measured_is_refused(cli: Cli, launchers: Launchers) -> None:
    launchers.lost = 1
    cli("train", *SMALL, "--output-dir=run")
    held = RunFolder.open(Path("run"), resume=True)
    try:
        refused = cli("resume", "run")
    finally:
        held.close()
    assert (refused.code, "is in use by process" in refused.err) == (3, True)
    assert len(launchers.made) == 1


def test_another_machine_is_refused_before_torch_is_loaded(
    cli: Cli, launchers: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    launchers.lost = 1
    cli("train", *SMALL, "--output-dir=run")
    here = {"cores": TWO_CORES.cores, "torch_version": f"{TWO_CORES.torch_version}+build", "cpu_model": None}
    monkeypatch.setattr(resuming, "machine_here", lambda: {**here, "python_version": "3.99.0"})
    refused = cli("resume", "run")
    assert (refused.code, refused.out) == (3, "")
    assert "these differ: python_version (3.11.0, now 3.99.0); start a new run" in refused.err
    assert len(launchers.made) == 1
    monkeypatch.setattr(resuming, "machine_here", lambda: here)
    launchers.lost = 0
    assert cli("resume", "run").code == 0


def test_other_settings_are_refused_before_torch_is_loaded(cli: Cli, launchers: Launchers) -> None:
    cli("train", *SMALL, "--batch-size=4", "--output-dir=run")
    refused = cli("train", *SMALL, "--batch-size=8", "--resume", "--output-dir=run")
    assert (refused.code, "different settings: batch_size (4, now 8)" in refused.err) == (2, True)
    assert len(launchers.made) == 1


def test_an_own_workload_is_found_where_the_run_was_started(
    cli: Cli, launchers: Launchers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text("def build(): ...\n")
    launchers.lost = 1
    cli("train", "--workload=model.py:build", *SMALL, "--output-dir=run")
    launchers.lost = 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli("resume", str(tmp_path / "run")).code == 0
    assert {result.settings["workload"] for result in load_run(tmp_path / "run").results} == {
        "model.py:build"
    }


def test_the_machine_of_this_process_has_the_facts_of_a_probe() -> None:
    names = {field.name for field in dataclasses.fields(Machine)}
    facts = resuming.machine_here()
    assert set(facts) <= names
    assert facts["cores"] >= 1


def test_a_job_is_submitted_again_by_what_was_asked_of_it(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "slurm"
    folder.mkdir(parents=True)
    flags = ["--min-busbw", "1000.0B/s"]
    job = {"verb": "comm", "verb_flags": flags, "flags": {"launcher": "slurm", "nodes": "2"}}
    (folder / "job.json").write_text(json.dumps(job))
    asked = ask_benchmark("comm", max_bytes=1024, repeats=2).experiment({})
    (folder / "request.yaml").write_text(to_yaml(asked))
    script = cli("resume", "run", "--repeats=3", "--dry-run")
    assert script.code == 0
    assert "Nothing was submitted" in script.err
    assert "for launch in 0 1 2; do" in script.out
    assert f"request.yaml --output-dir={tmp_path}/run" in script.out  # the gate is for all launches together


def test_ranks_that_follow_refuse_nothing(
    cli: Cli, launchers: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 holds the folder while the others start: that must not end them."""
    launchers.lost = 1
    cli("train", *SMALL, "--output-dir=run")
    followed: list[int] = []

    def follow(context: Any, init_timeout_s: float) -> int:
        followed.append(context.rank)
        return 0

    monkeypatch.setattr("scalescope.launch.torchrun.children.follow", follow)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    held = RunFolder.open(Path("run"), resume=True)
    try:
        assert cli("resume", "run").code == 0
        assert cli("train", *SMALL, "--resume", "--output-dir=run").code == 0
    finally:
        held.close()
    assert followed == [1, 1]
