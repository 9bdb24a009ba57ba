"""A request is parsed once and planned once, unless the machine turns out to be another than it seemed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import CannotRun
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine, PrecisionSupport
from scalescope.studies import request as requests
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import planned_here, prepare
from scalescope.studies.request import Request
from scalescope.studies.running import run_here
from scalescope.studies.scaling.scale import ScaleStudy
from scalescope.studies.study import Host, Study
from scalescope.studies.train import TrainStudy
from scalescope.studies.tuning.tune import TuneStudy
from tests.pipeline.recording import RecordingWatcher, ask
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher


class SeenBefore(FakeLauncher):
    """A machine of which the system shows `shown` before torch is loaded."""

    def __init__(self, shown: Machine, machine: Machine = TWO_CORES) -> None:
        super().__init__(CostModel(), machine)
        self._shown = shown

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return self._shown


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """The hosts that anything is planned for."""
    hosts: list[Host] = []
    for kind in (ScaleStudy, TuneStudy):
        monkeypatch.setattr(kind, "plan", _counting(kind.plan, hosts))
    return hosts


def _counting(plan: Any, hosts: list[Host]) -> Any:
    def counted(self: Study, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        hosts.append(host)
        made: Plan = plan(self, experiment, host, many=many)
        return made

    return counted


def bare(machine: Machine) -> Machine:
    """What is known of a machine without torch."""
    return dataclasses.replace(machine, cpu_model="unknown", torch_version="unknown", precisions=())


@pytest.mark.parametrize("dry_run", [False, True])
def test_one_scale_is_parsed_once_and_planned_once(
    planned: list[Host], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dry_run: bool
) -> None:
    parsed: list[Any] = []
    build = requests.build_experiment
    monkeypatch.setattr(requests, "build_experiment", lambda *given: parsed.append(given) or build(*given))
    monkeypatch.setattr(
        "scalescope.studies.running._launcher_for", lambda prepared, context: SeenBefore(bare(TWO_CORES))
    )
    monkeypatch.chdir(tmp_path)
    asked = ask("scale", world_size=[1, 2], batch_size=16, repeats=2, dry_run=dry_run)
    run_here(prepare(ScaleStudy(), asked), None, RecordingWatcher())
    assert (len(parsed), len(planned)) == (1, 1)


def _prepared_on(launcher: FakeLauncher, study: Study, request: Request) -> Plan:
    return planned_here(prepare(study, request), launcher).plan


def test_the_plan_has_the_machine_as_torch_found_it(planned: list[Host]) -> None:
    plan = _prepared_on(SeenBefore(bare(TWO_CORES)), ScaleStudy(), ask("scale"))
    assert (plan.machine, len(planned)) == (TWO_CORES, 1)


@pytest.mark.parametrize(
    "changes", [{"cores": 4}, {"gpu_problem": "no driver"}, {"backends": ()}, {"ranks_per_node": 2}]
)
def test_a_machine_that_decides_otherwise_is_planned_for_again(
    planned: list[Host], changes: dict[str, Any]
) -> None:
    launcher = SeenBefore(dataclasses.replace(bare(TWO_CORES), **changes))
    try:
        plan = _prepared_on(launcher, ScaleStudy(), ask("scale"))
    except CannotRun:
        assert changes.keys() & {"gpu_problem", "backends"}  # what is seen before is refused before
        return
    assert [host.machine.cores for host in planned] == [changes.get("cores", 2), 2]
    assert plan.trials == _prepared_on(FakeLauncher(CostModel()), ScaleStudy(), ask("scale")).trials


def test_a_search_is_planned_again_by_the_formats_that_torch_finds(planned: list[Host]) -> None:
    support = PrecisionSupport(name="bf16", native=False)
    machine = dataclasses.replace(TWO_CORES, precisions=(support,))
    plan = _prepared_on(SeenBefore(bare(machine), machine), TuneStudy(levers=("all",)), ask("tune"))
    assert len(planned) == 2
    assert not any(trial.settings["precision"] == "bf16" for trial in plan.trials)


@pytest.mark.parametrize(
    ("shell", "asked", "threads"),
    [
        ("3", {"command": "python train.py"}, (3,)),
        ("3", {"command": "python train.py", "threads_per_rank": 2}, (2,)),
        ("3", {"command": "python train.py", "env.OMP_NUM_THREADS": 2}, None),
        ("3", {}, None),
        ("all", {"command": "python train.py"}, None),
        ("", {"command": "python train.py"}, None),
    ],
)
def test_a_command_keeps_the_threads_of_the_shell(
    monkeypatch: pytest.MonkeyPatch, shell: str, asked: dict[str, Any], threads: tuple[int, ...] | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", shell)
    prepared = prepare(TrainStudy(), ask("train", **asked))
    assert prepared.experiment.settings.get("threads_per_rank") == threads
