"""Ranks without communication do what normal ranks do, except that nothing is sent."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scalescope.catalog import cards
from scalescope.catalog.setting import settings_of
from scalescope.experiment.explanations import without_communication
from scalescope.experiment.trial import Trial
from tests.gloo.many_cases import RANKS, Outcomes, run_cases

pytestmark = pytest.mark.gloo

_WARMUP = 4
_ACCUMULATED = {"accumulation_steps": 2}
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "ddp dynamic": ("ddp", {"static_graph": False}),
    "ddp copies": ("ddp", {"gradient_as_bucket_view": False}),
    "ddp many buckets": ("ddp", {"bucket_cap_mb": 0.001}),
    "ddp accumulated": ("ddp", _ACCUMULATED),
    "ddp accumulated dynamic": ("ddp", {"static_graph": False, **_ACCUMULATED}),
    "ddp buffers": ("ddp", {"broadcast_buffers": True}),
    "scratch_ddp": ("scratch_ddp", {}),
    "fsdp": ("fsdp", {}),
    "fsdp accumulated": ("fsdp", _ACCUMULATED),
    "fsdp kept": ("fsdp", {"reshard_after_forward": False}),
    "zero1": ("zero1", {}),
}
# What sends, and what prepares a message or waits for one.
_SENDS = ("c10d::", "gloo:", "nccl:", "record_param_comms")
_MULTIPLIED, _COPIED = "torch::distributed::reducer::mul_out", "torch::distributed::reducer::copy_"
_CONVERTED = ("aten::to", "aten::_to_copy", "aten::empty_strided")  # of the number to divide by
_COPIED_AND_DIVIDED = (_MULTIPLIED, _COPIED, "aten::mul", *_CONVERTED)
_VIEWED = ("chunk", "split", "narrow", "select", "slice", "view", "view_as", "as_strided")
_MOVED = tuple(
    f"aten::{name}" for name in (*_VIEWED, "clone", "copy_", "div", "div_", "empty", "empty_strided")
)


def _trial(strategy: str, settings: dict[str, Any]) -> Trial:
    selection = {"workloads": "mlp", "data": "synthetic", "strategies": strategy}
    owners = cards.cards_of_trial("train", selection)
    known = {setting.name: setting.default_for("cpu") for owner in owners for setting in settings_of(owner)}
    sizes = {"input_dim": 16, "hidden_dim": 25, "num_layers": 3, "output_dim": 5, "batch_size": 8}
    asked = {"strategy": strategy, "world_size": RANKS, "lr": 0.1}
    return Trial(settings={"benchmark": "train", **known, **sizes, **asked, **settings})


def _work(label: str, rank: int, directory: Path) -> dict[str, Any]:
    normal = _trial(*_CASES[label])
    silent = without_communication(normal)
    assert silent is not None
    return {"normal": _recorded(normal, rank), "silent": _recorded(silent, rank)}


def _recorded(trial: Trial, rank: int) -> dict[str, Any]:
    """The names of all operations in one step, and the losses."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from scalescope.worker.process.group import Group
    from scalescope.worker.process.position import Position
    from scalescope.worker.training.assembly import build_step, build_workload
    from tests.builders.workers import run_steps

    device = torch.device("cpu")
    workload = build_workload(trial, Group(rank=rank, world_size=RANKS, joined=False), device)
    step = build_step(trial, workload, device)
    assert workload.data.synthesize is not None
    batch = workload.data.synthesize(8, torch.Generator().manual_seed(rank))
    position = Position(None, rank, RANKS)

    def run(count: int) -> list[float]:
        batches = iter([batch] * count * step.accumulation_steps)
        window = run_steps(step, batches, count, position)
        return [float(loss) for loss in window.losses]

    losses = run(_WARMUP)
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        losses += run(1)
    operations = Counter(event.name for event in recorder.events())
    return {"operations": operations, "losses": losses, "counters": step.counters()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_cases(_work, tuple(_CASES), tmp_path_factory.mktemp("silent"))


def _sending(operations: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in operations.items() if name.startswith(_SENDS)}


def _computing(operations: dict[str, int], beside: tuple[str, ...] = ()) -> dict[str, int]:
    return {n: count for n, count in operations.items() if not n.startswith(_SENDS) and n not in beside}


@pytest.mark.parametrize("case", _CASES)
def test_nothing_is_sent_and_losses_are_finite(outcomes: Outcomes, case: str) -> None:
    for answer in outcomes.of(case):
        assert _sending(answer["normal"]["operations"])
        assert _sending(answer["silent"]["operations"]) == {}
        assert all(map(math.isfinite, answer["silent"]["losses"]))


@pytest.mark.parametrize("case", [name for name in _CASES if not name.startswith("fsdp")])
def test_all_other_operations_are_those_of_normal_ranks(outcomes: Outcomes, case: str) -> None:
    _, settings = _CASES[case]
    # Where gradients are copied into buckets, a normal rank divides in that pass: the same one, other names.
    copied = settings.get("gradient_as_bucket_view") is False
    beside = _COPIED_AND_DIVIDED if copied else ()
    for answer in outcomes.of(case):
        normal, silent = (_computing(answer[kind]["operations"], beside) for kind in ("normal", "silent"))
        assert silent == normal
        if copied:
            passes = [answer[kind]["operations"] for kind in ("normal", "silent")]
            assert passes[0][_MULTIPLIED] == passes[1][_COPIED] > 0


@pytest.mark.parametrize("case", [name for name in _CASES if name.startswith("fsdp")])
def test_fsdp_computes_and_copies_as_normal_ranks(outcomes: Outcomes, case: str) -> None:
    """The collectives of gloo are themselves made of small operations on buffers, which are not compared."""
    for answer in outcomes.of(case):
        normal, silent = (_computing(answer[kind]["operations"], _MOVED) for kind in ("normal", "silent"))
        assert silent == normal
        assert any(name.startswith("fsdp::") for name in silent)


def test_the_hook_reports_what_it_costs(outcomes: Outcomes) -> None:
    for answer in outcomes.of("ddp"):
        assert answer["silent"]["counters"]["no_comm_hook_s_per_step"] > 0.0
        assert answer["normal"]["counters"] == {}
