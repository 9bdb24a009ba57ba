"""Advice of findings: the command line accepts every command, and none advises what is in use."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scalescope.cli import app
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.finding import Diagnosis
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import TWO_CORES, CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.launch.local import launcher as local
from tests.builders.requests import with_gpus
from tests.builders.studies import scale

from .recording import RecordingWatcher, ask

GPUS = with_gpus(4)
SLOW = CostModel(exposed_comm_s={2: 0.4, 4: 0.4}, bytes_per_s=1e7)
SHORT = CostModel(fixed_s=0.001, per_sample_s=0.0001)
FED = dataclasses.replace(SHORT, input_s={1: 0.02, 2: 0.02})
BUSY_HOST = {"gpus": {"0": {"utilization": [0.3]}}, "cpu": {"rank_busy_cores": [1.0]}}
FULL_AND_HOT = {"gpus": {"0": {"memory_used_bytes": [1 << 34], "slowdowns": {"thermal (software)": 0.5}}}}


class CountingLauncher(FakeLauncher):
    """A fake launcher that also adds counters of the ranks, and telemetry."""

    def __init__(
        self,
        model: CostModel,
        machine: Machine = TWO_CORES,
        counters: Mapping[str, float | str] | None = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, machine)
        self._counters = dict(counters or {})
        self._telemetry = dict(telemetry or {})

    def launch(self, trial: Trial, launch: int, *others: Any, **named: Any) -> Outcome:
        ended = super().launch(trial, launch, *others, **named)
        if trial.settings["benchmark"] != "train":
            return ended
        for record in ended.records:
            record.counters.update(self._counters)
        return dataclasses.replace(ended, telemetry=self._telemetry)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A run whose cause is known, and a rule that finds it."""

    rule: str
    model: CostModel
    machine: Machine = TWO_CORES
    counters: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    telemetry: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def diagnosis(self) -> Diagnosis:
        launcher = CountingLauncher(self.model, self.machine, self.counters, self.telemetry)
        wanted = {"world_size": [1, 2], "batch_size": 50, "repeats": 2, **self.asked}
        batch = "global_batch_size" if "global_batch_size" in wanted else "batch_size"
        kept = {name: value for name, value in wanted.items() if name != "batch_size" or name == batch}
        report = scale(ask("scale", **kept), launcher, RecordingWatcher())
        assert report.run is not None
        return diagnose(report.run)


ON_GPU = {"device": "cuda"}
LATE_BUCKET = CostModel(exposed_comm_s={2: 0.02}, fixed_s=0.05, bytes_per_s=2e8)
MANY_STARTS = CostModel(exposed_comm_s={2: 0.1}, fixed_s=0.05, latency_s=1e-3)
MANY_BUCKETS = {"bucket_bytes": ",".join(["10000"] * 400)}
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
CASES = [
    Case(rule="communication-bound by bandwidth", model=SLOW),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"global_batch_size": 100}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"precision": ["fp32", "bf16"]}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"strategy": ["ddp", "zero1"]}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"bucket_cap_mb": [5, 25]}),
    Case(rule="communication-bound by bandwidth", model=SLOW, asked={"output_dir": "my run"}),
    Case(
        rule="too little work for every exchange", model=CostModel(exposed_comm_s={2: 0.01}, bytes_per_s=4e8)
    ),
    Case(
        rule="communication-bound by latency",
        model=CostModel(exposed_comm_s={2: 0.02}, latency_s=0.018, bytes_per_s=1e12),
    ),
    Case(rule="buckets too small", model=MANY_STARTS, counters=MANY_BUCKETS),
    Case(rule="last bucket too large", model=LATE_BUCKET, counters={"bucket_bytes": "4000000"}),
    Case(
        rule="model too small for several ranks",
        model=CostModel(fixed_s=0.0, exposed_comm_s={2: 0.005}, latency_s=4e-3),
        counters=FEW_PARAMETERS,
    ),
    Case(rule="too many CPU threads", model=CostModel(contention_s=0.02), asked={"threads_per_rank": 8}),
    Case(rule="ranks slow each other down", model=CostModel(contention_s=0.02)),
    Case(rule="straggling rank", model=CostModel(late_s={1: 0.02})),
    Case(rule="input-bound", model=FED, asked={"num_workers": 1}),
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
]


def name_of(case: Case) -> str:
    return " ".join([case.rule, *map(str, case.asked)])


def exit_code_of(command: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How the command line ends with a command, without measuring anything."""
    monkeypatch.setattr(local, "LocalLauncher", lambda: FakeLauncher(CostModel(), machine))
    program, *words = shlex.split(command)
    assert program == "scalescope"
    with pytest.raises(SystemExit) as leaving:
        app.main([*words, "--help" if words[0] == "check" else "--dry-run"])
    return leaving.value.code


def refused(case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Every command of a diagnosis that the command line does not accept, with its error."""
    diagnosis = case.diagnosis()
    commands = [advice.command for finding in diagnosis.findings for advice in finding.advice if advice.argv]
    commands += [abstention.command for abstention in diagnosis.abstentions if abstention.command]
    assert case.rule in {finding.rule for finding in diagnosis.findings} | {
        abstention.rule for abstention in diagnosis.abstentions
    }
    refusals = []
    for command in commands:
        capsys.readouterr()
        if exit_code_of(command, case.machine, monkeypatch):
            refusals.append(f"{command}: {capsys.readouterr().err}")
    return refusals


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_command_can_be_run_as_it_stands(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(case, monkeypatch, capsys) == []


WEAK = "weak scaling is not a faster job"


@pytest.mark.parametrize(
    "case",
    [
        Case(rule=WEAK, model=CostModel()),
        Case(rule="unequal links", model=SLOW, machine=GPUS, asked={**ON_GPU, "world_size": [1, 2, 4]}),
        Case(rule=WEAK, model=CostModel(), asked={"output_dir": "my run"}),
        Case(rule=WEAK, model=CostModel(), asked={"world_size": [1, 4]}),
        Case(rule=WEAK, model=CostModel(), asked={"accumulation_steps": 2}),
        Case(
            rule="unequal links",
            model=SLOW,
            machine=with_gpus(2),
            asked={"device": "cpu", "world_size": [1, 4]},
        ),
        Case(rule="communication-bound by bandwidth", model=SLOW, asked={"strategy": ["ddp", "fsdp"]}),
        Case(rule="communication-bound by bandwidth", model=SLOW, asked={"workload": ["mlp", "paced"]}),
        Case(rule="communication-bound by bandwidth", model=SLOW, asked={"threads_per_rank": [1, 2]}),
    ],
    ids=name_of,
)
def test_every_command_for_other_jobs_can_be_run_as_it_stands(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(case, monkeypatch, capsys) == []


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_no_advice_sets_a_setting_to_its_current_value(case: Case) -> None:
    diagnosis = case.diagnosis()
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


IN_USE = [
    ("communication-bound by bandwidth", SLOW, {"comm_hook": "fp16"}, "comm_hook"),
    ("communication-bound by bandwidth", SLOW, {"accumulation_steps": 4}, "accumulation_steps"),
    ("buckets too small", MANY_STARTS, {"bucket_cap_mb": 50}, "bucket_cap_mb=50.0"),
    ("communication-bound by latency", MANY_STARTS, {"bucket_cap_mb": 100}, "bucket_cap_mb=100.0"),
    (
        "too many CPU threads",
        CostModel(contention_s=0.02),
        {"threads_per_rank": 1, "world_size": [1, 4]},
        "threads",
    ),
]


@pytest.mark.parametrize(("rule", "model", "asked", "lever"), IN_USE)
def test_what_is_in_use_is_not_advised(
    rule: str, model: CostModel, asked: dict[str, Any], lever: str
) -> None:
    diagnosis = Case(rule=rule, model=model, counters=MANY_BUCKETS, asked=asked).diagnosis()
    (finding,) = [finding for finding in diagnosis.findings if finding.rule == rule]
    assert not any(lever in advice.command.rpartition("--levers")[2] for advice in finding.advice)


def test_without_a_one_rank_run_the_baseline_is_reported_as_unfair() -> None:
    diagnosis = Case(rule="", model=CostModel(), asked={"world_size": [2, 4]}).diagnosis()
    assert "the baseline is not plain training on one rank" in {
        finding.rule for finding in diagnosis.findings
    }


def test_a_run_with_one_rank_has_a_fair_baseline() -> None:
    diagnosis = Case(rule="", model=CostModel()).diagnosis()
    assert "the baseline is not plain training on one rank" not in {
        finding.rule for finding in diagnosis.findings
    }
