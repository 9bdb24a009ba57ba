"""Findings of runs whose cause is known, and their advice: the command line accepts every command."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalescope.cli import app
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.finding import Diagnosis
from scalescope.diagnose.step_rules import ranks
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.studies import running
from scalescope.studies.stored import explain
from tests.builders.requests import with_gpus
from tests.builders.studies import scale
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

GPUS = with_gpus(4)
SLOW = CostModel(exposed_comm_s={2: 0.4, 4: 0.4}, bytes_per_s=1e7)
SHORT = CostModel(fixed_s=0.001, per_sample_s=0.0001)
FED = dataclasses.replace(SHORT, input_s={1: 0.02, 2: 0.02})
BUSY_HOST = {"gpus": {"0": {"utilization": [0.3]}}, "cpu": {"rank_busy_cores": [1.0]}}
FULL_AND_HOT = {"gpus": {"0": {"memory_used_bytes": [1 << 34], "slowdowns": {"thermal (software)": 0.5}}}}


class CountingLauncher(FakeLauncher):
    """A fake launcher that also adds counters and bucket sizes of the ranks, and telemetry."""

    def __init__(
        self,
        model: CostModel,
        machine: Machine = TWO_CORES,
        counters: Mapping[str, float | str] | None = None,
        telemetry: Mapping[str, Any] | None = None,
        bucket_bytes: Sequence[float] = (),
    ) -> None:
        super().__init__(model, machine)
        self._counters = dict(counters or {})
        self._telemetry = dict(telemetry or {})
        self._bucket_bytes = list(bucket_bytes)

    def launch(self, trial: Trial, launch: int, *others: Any, **named: Any) -> Outcome:
        ended = super().launch(trial, launch, *others, **named)
        if trial.settings["benchmark"] != "train":
            return ended
        for record in ended.records:
            record.counters.update(self._counters)
            record.samples["bucket_bytes"] = self._bucket_bytes
        return dataclasses.replace(ended, telemetry=self._telemetry)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A run whose cause is known, and a rule that finds it, as the first one where it `is_first`."""

    rule: str
    model: CostModel
    machine: Machine = TWO_CORES
    counters: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    telemetry: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bucket_bytes: Sequence[float] = ()
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_first: bool = False

    def diagnosis(self) -> Diagnosis:
        launcher = CountingLauncher(
            self.model, self.machine, self.counters, self.telemetry, self.bucket_bytes
        )
        wanted = {"world_size": [1, 2], "batch_size": 50, "repeats": 2, **self.asked}
        batch = "global_batch_size" if "global_batch_size" in wanted else "batch_size"
        kept = {name: value for name, value in wanted.items() if name != "batch_size" or name == batch}
        report = scale(ask("scale", **kept), launcher, RecordingWatcher())
        assert report.run is not None
        return diagnose(report.run)


ON_GPU = {"device": "cuda"}
LATE_BUCKET = CostModel(exposed_comm_s={2: 0.02}, fixed_s=0.05, bytes_per_s=2e8)
MANY_STARTS = CostModel(exposed_comm_s={2: 0.1}, fixed_s=0.05, latency_s=1e-3)
FEW_PARAMETERS = {"gradient_bytes": 40_000, "buffer_bytes": 1000}
# It computes all the time, has one core of two, and starts its processes anew for every epoch.
WATCHED_LOADER = {
    "loader_s": 0.02,
    "copy_s": 0.0,
    "loader/first_batch_s": 0.1,
    "loader/restarts": 1,
    "loader/prepare_s": 0.05,
    "loader/collate_s": 0.01,
    "loader/cpu_s": 0.05,
    "loader/workers": 1,
    "loader/cores": 1,
    "loader/persistent": 0,
}
WEAK = "weak scaling is not a faster job"
CASES = [
    Case(rule="communication-bound by bandwidth", model=SLOW, is_first=True),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"global_batch_size": 100}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"precision": ["fp32", "bf16"]}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"strategy": ["ddp", "fsdp"]}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"workload": ["mlp", "paced"]}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"threads_per_rank": [1, 2]}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"output_dir": "my run"}),
    Case(
        rule="too little work per exchange",
        model=CostModel(exposed_comm_s={2: 0.01}, bytes_per_s=4e8),
        is_first=True,
    ),
    Case(
        rule="communication-bound by latency",
        model=CostModel(exposed_comm_s={2: 0.02}, latency_s=0.018, bytes_per_s=1e12),
        is_first=True,
    ),
    Case(rule="buckets too small", model=MANY_STARTS, bucket_bytes=[10_000.0] * 400),
    Case(rule="last bucket too large", model=LATE_BUCKET, bucket_bytes=[4_000_000.0]),
    Case(
        rule="model too small for several ranks",
        model=CostModel(fixed_s=0.0, exposed_comm_s={2: 0.005}, latency_s=4e-3),
        counters=FEW_PARAMETERS,
    ),
    Case(
        rule="too many CPU threads",
        model=CostModel(contention_s=0.02),
        asked={"threads_per_rank": 8},
        is_first=True,
    ),
    Case(rule="ranks slow each other down", model=CostModel(contention_s=0.02), is_first=True),
    Case(rule="straggling rank", model=CostModel(late_s={1: 0.02}), is_first=True),
    Case(rule="input-bound", model=CostModel(input_s={2: 0.02}), asked={"num_workers": 1}, is_first=True),
    Case(rule="input-bound", model=FED, counters=WATCHED_LOADER, asked={"num_workers": 1, "seed": 1}),
    Case(
        rule="the optimizer is not fused",
        model=SHORT,
        counters={"host/optimizer_s": 0.003},
        asked={"optimizer": "adamw"},
    ),
    Case(
        rule="copy-bound",
        model=FED,
        machine=GPUS,
        counters={"loader_s": 0.001, "copy_s": 0.02},
        asked={**ON_GPU, "num_workers": 2},
    ),
    Case(
        rule="gradients in fp32 under autocast",
        model=SLOW,
        machine=GPUS,
        asked={**ON_GPU, "precision": "bf16"},
    ),
    Case(rule="matrix units are idle", model=SLOW, machine=GPUS, asked=ON_GPU),
    Case(
        rule="host-bound",
        model=SHORT,
        machine=GPUS,
        telemetry=BUSY_HOST,
        asked=ON_GPU,
    ),
    Case(rule="memory is nearly full", model=SHORT, machine=GPUS, telemetry=FULL_AND_HOT, asked=ON_GPU),
    Case(rule="GPU slowed down", model=SHORT, machine=GPUS, telemetry=FULL_AND_HOT, asked=ON_GPU),
    Case(
        rule="buffers are broadcast before every step",
        model=SLOW,
        counters={"buffer_bytes": 1000},
        asked={"broadcast_buffers": "true"},
    ),
    Case(
        rule="find_unused_parameters is on",
        model=SLOW,
        asked={"find_unused_parameters": "true", "static_graph": "false"},
    ),
    Case(rule=WEAK, model=CostModel(), asked={"world_size": [1, 4], "accumulation_steps": 2}),
    Case(rule="unequal links", model=SLOW, machine=GPUS, asked={**ON_GPU, "world_size": [1, 2, 4]}),
    Case(
        rule="unequal links",
        model=SLOW,
        machine=with_gpus(2),
        asked={"device": "cpu", "world_size": [1, 4]},
    ),
]


def name_of(case: Case) -> str:
    return " ".join([case.rule, *map(str, case.asked)])


def exit_code_of(command: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How the command line ends with a command, without measuring anything."""
    monkeypatch.setattr(running, "LocalLauncher", lambda: FakeLauncher(CostModel(), machine))
    program, *words = shlex.split(command)
    assert program == "scalescope"
    with pytest.raises(SystemExit) as leaving:
        app.main([*words, "--help" if words[0] == "check" else "--dry-run"])
    return leaving.value.code


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_cause_is_found_and_every_command_of_its_advice_can_be_run(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    diagnosis = case.diagnosis()
    assert case.rule in {finding.rule for finding in diagnosis.findings} | {
        abstention.rule for abstention in diagnosis.abstentions
    }
    if case.is_first:
        first = diagnosis.findings[0]
        assert (first.rule, first.severity) == (case.rule, "high")
        assert first.evidence
    commands = [advice.command for finding in diagnosis.findings for advice in finding.advice if advice.argv]
    commands += [abstention.command for abstention in diagnosis.abstentions if abstention.command]
    refused = []
    for command in dict.fromkeys(commands):
        capsys.readouterr()
        if exit_code_of(command, case.machine, monkeypatch):
            refused.append(f"{command}: {capsys.readouterr().err}")
    assert refused == []
    in_use = _settings_in(Path(case.asked.get("output_dir", "run")))
    for lever in _levers(diagnosis):
        name, separator, value = lever.partition("=")
        assert not separator or (name, value.lower()) not in in_use


def _levers(diagnosis: Diagnosis) -> list[str]:
    commands = [shlex.split(advice.command) for finding in diagnosis.findings for advice in finding.advice]
    return [words[-1] for words in commands if "--levers" in words]


def _settings_in(folder: Path) -> set[tuple[str, str]]:
    """The settings in experiment.yaml, line by line."""
    lines = (folder / "experiment.yaml").read_text().lower().splitlines()
    return {(line.partition(":")[0], line.partition(":")[2].strip()) for line in lines if ":" in line}


def findings(model: CostModel, **asked: Any) -> list[dict[str, Any]]:
    wanted = {"world_size": [1, 2], "batch_size": 50, "repeats": 3, **asked}
    report = scale(ask("scale", **wanted), FakeLauncher(model), RecordingWatcher())
    entries: list[dict[str, Any]] = summary_of(report.path)["results"]["findings"]
    return entries


def test_a_healthy_run_has_no_finding_that_costs_anything() -> None:
    assert [
        finding for finding in findings(CostModel(launch_noise=0.005)) if finding["severity"] != "low"
    ] == []


def test_a_slow_network_is_explained_and_its_first_advice_is_to_send_less() -> None:
    found = {finding["rule"]: finding for finding in findings(SLOW)}
    assert found["negative scaling"]["evidence"]["largest loss"]["value"] == "communication"
    bandwidth = found["communication-bound by bandwidth"]
    assert bandwidth["advice"][0]["command"].endswith("--levers comm_hook")
    text = "\n".join(line for section in explain(Path("run")) for line in section.lines)
    assert "2 ranks deliver" in text and "communication-bound by bandwidth" in text
    assert "scalescope tune" in Path("run/performance_report.txt").read_text()


def test_on_a_usual_network_less_is_sent_last_and_never_what_is_in_use() -> None:
    model = CostModel(exposed_comm_s={2: 0.01}, fixed_s=0.05, bytes_per_s=1e9)
    usual = next(f for f in findings(model) if f["rule"] == "communication-bound by bandwidth")
    assert usual["advice"][0]["command"].endswith("--levers batch_size")
    assert usual["advice"][-1]["command"].endswith("--levers comm_hook")
    first = findings(SLOW, output_dir="other", comm_hook="fp16")[0]
    assert first["rule"] == "communication-bound by bandwidth"
    assert not any("comm_hook" in advice["command"] for advice in first["advice"])


def test_a_rule_that_fails_loses_only_its_own_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(facts: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(ranks, "buffers_rule", broken)
    reported = findings(CostModel(late_s={1: 0.02}))
    assert reported[0]["rule"] == "straggling rank"
    assert "KeyError" in Path("run/performance_report.txt").read_text()


def test_a_failed_collective_is_listed_without_changing_the_exit_code() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        comm = trial.settings["benchmark"] == "comm"
        return Outcome(status="hang", reason="no network") if comm else None

    launcher = FakeLauncher(CostModel(exposed_comm_s={2: 0.01}), outcomes=fail)
    report = scale(ask("scale", world_size=[1, 2], batch_size=50, repeats=2), launcher, RecordingWatcher())
    assert report.exit_code == 0
    assert report.sections[0].title == "Failed"


def test_waiting_not_explained_by_transfer_is_not_called_communication_bound() -> None:
    model = CostModel(exposed_comm_s={2: 0.5}, bytes_per_s=1e9)
    assert not any(finding["rule"].startswith("communication-bound") for finding in findings(model))


def test_advice_narrows_a_run_of_several_jobs_to_the_one_it_is_about() -> None:
    first = findings(SLOW, precision=["fp32", "bf16"])[0]
    assert "precision " in first["about"]
    assert "--precision " in first["advice"][0]["command"]


def test_communication_that_cannot_be_switched_off_is_an_upper_bound() -> None:
    looking = {"find_unused_parameters": "true", "static_graph": "false"}
    reported = findings(CostModel(contention_s=0.02), **looking)
    assert not any(finding["rule"] == "too little work per exchange" for finding in reported)
    assert all(
        "at most" in finding["claim"]
        for finding in reported
        if finding["rule"].startswith("communication-bound")
    )
