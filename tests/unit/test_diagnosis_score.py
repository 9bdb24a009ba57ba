"""The score of the diagnosis: its cases can be planned, its sets are fixed, and its tables count."""

import dataclasses
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from scalescope.catalog.workloads.custom import ARGUMENTS
from scalescope.results.run_folder import EXPERIMENT
from scalescope.studies.prepared import host_of, prepare
from tests.builders.requests import with_gpus
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "diagnosis" / "workloads")]

cpu_jobs, gpu_jobs = map(importlib.import_module, ("cpu_jobs", "gpu_jobs"))
cases, gpu_cases, measuring, scoring = (
    importlib.import_module(f"diagnosis.{name}") for name in ("cases", "gpu_cases", "measuring", "scoring")
)
HEALTHY = cases.HEALTHY
ALL = cases.all_cases()
GPU_CASES = (*gpu_cases.CASES, *gpu_cases.TWO_RANKS)
SLOW_RANK = next(case for case in ALL if case.cause == "slow rank")
SLOW_LINK = next(case for case in ALL if case.cause == "slow link")
WELL = next(case for case in ALL if case.cause == HEALTHY)


def test_every_case_has_a_name_and_a_folder_of_its_own() -> None:
    for wanted in (ALL, GPU_CASES):
        assert len({case.name for case in wanted}) == len({case.folder for case in wanted}) == len(wanted)


def test_a_name_decides_its_set_for_good() -> None:
    case = cases.Case("slow rank", "6 ms", {}, 2)
    assert (case.name, case.is_held_out) == ("slow rank, 2 ranks, 6 ms", False)
    assert dataclasses.replace(case, strength="15 ms").is_held_out


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_case_can_be_planned(ranks: int, tmp_path: Path) -> None:
    for case in (case for case in ALL if case.ranks == ranks):
        study = measuring.study_of(case)
        request = measuring.request_of(study, measuring.flags_of(case, tmp_path))
        plan = prepare(study, request).on(host_of(FakeLauncher(CostModel()))).plan
        assert {trial.world_size for trial in plan.trials} == {1, ranks}, case
        assert not any(trial.measures_pairs for trial in plan.once), case


@pytest.mark.parametrize("name", sorted({case.job for case in ALL if case.job}))
def test_every_cpu_job_trains_with_the_arguments_of_its_cases(name: str) -> None:
    factory = getattr(cpu_jobs, name)
    arguments = [case.arguments for case in ALL if case.job == name]
    for given in arguments:
        inspect.signature(factory).bind_partial(**given)
    model, data, loss, *optimizer = _called(factory, **arguments[0])
    _train(model, data, loss, *optimizer)


@pytest.mark.parametrize(("fixed", "tiny"), [(False, False), (True, True)])
def test_every_gpu_case_can_be_planned(fixed: bool, tiny: bool) -> None:
    host = host_of(FakeLauncher(CostModel(), TWO_CORES if tiny else with_gpus(1)))
    study = measuring.TrainStudy()
    for case in GPU_CASES:
        flags = case.flags(measuring.WORKLOADS, fixed=fixed, tiny=tiny)
        plan = prepare(study, measuring.request_of(study, flags)).on(host).plan
        assert {trial.world_size for trial in plan.trials} == {case.ranks}, case
        assert case.expected


def _called(factory: Callable[..., Any], **arguments: object) -> tuple[Any, ...]:
    """What a workload returns for rank 0 of two."""
    available = dict(zip(ARGUMENTS, (0, 2, 2, torch.device("cpu")), strict=True))
    wanted = [name for name in ARGUMENTS if name in inspect.signature(factory).parameters]
    job: tuple[Any, ...] = factory(**{name: available[name] for name in wanted}, **arguments)
    return job


def _train(model: Any, data: Any, loss: Any, optimizer: Any = torch.optim.SGD) -> None:
    """One step, which must reach all parameters."""
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=2)
    inputs, targets = next(iter(loader))
    loss(model(inputs), targets).backward()
    optimizer(model.parameters()).step()
    assert all(parameter.grad is not None for parameter in model.parameters())


def verdict(case: Any, *costs: tuple[str, float], largest: str = HEALTHY) -> Any:
    top = next((rule for rule, share in costs if share > scoring.MATTERS), HEALTHY)
    return scoring.Verdict(case, top, costs, largest)


def test_the_first_finding_that_matters_is_judged() -> None:
    assert verdict(SLOW_RANK, ("straggling rank", 0.3), ("input-bound", 0.1)).is_right
    assert not verdict(SLOW_RANK, ("input-bound", 0.3), ("straggling rank", 0.1)).is_right
    assert not verdict(SLOW_RANK, ("straggling rank", 0.04)).is_right
    assert verdict(WELL, ("straggling rank", 0.04)).is_right
    assert not verdict(WELL, ("straggling rank", 0.06)).is_right


def test_a_disturbed_run_does_not_count() -> None:
    right = verdict(SLOW_RANK, ("straggling rank", 0.3))
    disturbed = verdict(SLOW_RANK, ("other load", 0.2), ("input-bound", 0.1))
    table = scoring.score_table([right, disturbed], [SLOW_RANK, SLOW_RANK, SLOW_RANK])
    cells = table.splitlines()[2].split(" | ")
    assert (cells[1], cells[5:]) == ("1 of 1 (100%)", ["1", "1 of 3 |"])


def test_precision_counts_what_other_causes_were_called() -> None:
    wrong = verdict(SLOW_LINK, ("straggling rank", 0.3))
    right = verdict(SLOW_RANK, ("straggling rank", 0.3))
    rows = [line.split(" | ") for line in scoring.cause_table([wrong, right]).splitlines()[2:]]
    assert [row[1:3] for row in rows] == [["0 of 1", "never reported"], ["1 of 1", "1 of 2"]]
    assert rows[0][3] == "straggling rank (1)"


def test_a_stored_run_counts_while_its_case_has_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / SLOW_RANK.folder
    (folder / "run").mkdir(parents=True)
    (folder / "run" / EXPERIMENT).touch()
    assert measuring.stored_run(tmp_path, SLOW_RANK) is None
    (folder / "case.json").write_text(json.dumps(SLOW_RANK.record()))
    assert measuring.stored_run(tmp_path, SLOW_RANK) is not None
    changed = dataclasses.replace(SLOW_RANK, fault="slow:99@1:0")
    assert measuring.stored_run(tmp_path, changed) is None


def test_the_table_of_a_gpu_shows_claims_and_gains() -> None:
    row = {
        "model": "ResNet-50",
        "cause": "NCHW",
        "ranks": 1,
        "right": True,
        "step_s": 0.06,
        "gained_s": 0.012,
        "findings": [{"rule": "NCHW convolutions", "cost_s": 0.011}],
        "error": "",
    }
    line = gpu_cases.gpu_table([row]).splitlines()[2]
    assert line == "| ResNet-50 | NCHW | NCHW convolutions | yes | 60.0 | 11.0 | 12.0 |  |"
