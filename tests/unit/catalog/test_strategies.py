"""Cards of strategies and of the training benchmark: their facts, and the settings they refuse."""

from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.train import AUTO, Train, warmup_of
from scalescope.catalog.setting import settings_of
from scalescope.catalog.strategies.pipeline import parts_of
from scalescope.catalog.training import strategies_worth_trying
from scalescope.errors import BadInput

_JOB: dict[str, Any] = {
    "world_size": 2,
    "batch_size": 16,
    "global_batch_size": None,
    "accumulation_steps": 1,
    "precision": "fp32",
    "stand_in": False,
}


def _check(strategy: str, changes: Mapping[str, Any]) -> None:
    card = cards.card("strategies", strategy)
    defaults = {setting.name: setting.default_for("cpu") for setting in settings_of(card)}
    if hasattr(card, "check"):
        card.check({**_JOB, **defaults, **changes})


def test_an_ordinary_job_is_taken() -> None:
    for strategy in ("ddp", "scratch_ddp", "fsdp", "zero1", "pipeline"):
        _check(strategy, {})
    for strategy in ("fsdp", "zero1"):  # settings of other benchmarks may be missing
        cards.card("strategies", strategy).check({"world_size": 2})


@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        ("fsdp", {"stand_in": True}, "--stand-in cannot be used with fsdp, .*; use ddp"),
        ("zero1", {"stand_in": True}, "--stand-in cannot be used with zero1, .*; use ddp"),
        ("pipeline", {"stand_in": True}, "--stand-in cannot be used with pipeline, .*; use ddp"),
        ("pipeline", {"world_size": 1}, "pipeline requires at least 2 ranks; use --world-size 2"),
        ("pipeline", {"accumulation_steps": 2}, "accumulation_steps cannot be used with pipeline; .*"),
        ("pipeline", {"precision": "fp16"}, "precision fp16 cannot be used with pipeline, .*; use bf16"),
        ("pipeline", {"microbatches": 5}, "a batch of 16 cannot be split into 5 equal microbatches; use 4"),
        (
            "pipeline",
            {"microbatches": 32},
            "a batch of 16 cannot be split into 32 equal microbatches; use 16",
        ),
        (
            "pipeline",
            {"global_batch_size": 18, "batch_size": None, "microbatches": 4},
            "a batch of 18 cannot be split into 4 equal microbatches; use 3",
        ),
        (
            "pipeline",
            {"world_size": 3, "batch_size": 2},
            r"schedule 1f1b requires a microbatch per rank \(3\), .* gives 2; use --schedule gpipe",
        ),
        (
            "pipeline",
            {"microbatches": 1},
            "schedule 1f1b requires .* a batch of 16 gives 1; use --schedule gpipe",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    strategy: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=f"^{message}$"):
        _check(strategy, changes)


def test_a_pipeline_takes_what_it_can_cut() -> None:
    for changes in (
        {"schedule": "gpipe", "microbatches": 1},
        {"schedule": "gpipe", "world_size": 3, "batch_size": 2},
        {"microbatches": 16},
        {"precision": "tf32"},
        {"precision": "bf16"},
        {"batch_size": None, "global_batch_size": 4},
    ):
        _check("pipeline", changes)


def test_a_batch_is_cut_into_its_largest_divisor() -> None:
    asked = [(16, None, 2), (18, None, 2), (7, None, 2), (7, None, 4), (1, None, 2), (16, 8, 2)]
    assert [parts_of(*batch) for batch in asked] == [4, 3, 1, 7, 1, 8]


def test_a_pipeline_is_one_replica_however_long() -> None:
    pipeline = cards.card("strategies", "pipeline")
    assert [pipeline.replicas(ranks) for ranks in (2, 3, 8)] == [1, 1, 1]
    assert (pipeline.least_ranks, pipeline.evaluates, pipeline.replicated) == (2, False, False)


def test_zero1_has_the_settings_of_ddp_and_its_ablations_but_one() -> None:
    ddp, zero1 = cards.card("strategies", "ddp"), cards.card("strategies", "zero1")
    assert [setting.name for setting in settings_of(zero1)] == [setting.name for setting in settings_of(ddp)]
    assert zero1.ablations == ("without_communication",)
    assert ddp.ablations == (*zero1.ablations, "without_optimizer")  # ZeRO-1's update is communication, too
    assert ddp.least_gpu_warmup_steps == zero1.least_gpu_warmup_steps == 11


def test_only_replicas_are_compared_by_checksum() -> None:
    replicated = {name for name in cards.names("strategies") if cards.card("strategies", name).replicated}
    assert {"scratch_ddp", "zero1"} <= replicated and not {"fsdp", "pipeline"} & replicated
    assert strategies_worth_trying() == ("ddp", "scratch_ddp", "fsdp", "zero1", "pipeline")


# training


def _settings(strategy: str = "ddp", device: str = "cuda", **changes: Any) -> dict[str, Any]:
    usual = {"warmup_steps": 5, "steps_per_epoch": AUTO, "epochs": 1}
    return {"strategy": strategy, "device": device, **usual, **changes}


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (_settings("ddp"), 11),
        (_settings("zero1"), 11),
        (_settings("ddp", warmup_steps=20), 20),
        (_settings("ddp", "cpu"), 5),
        (_settings("fsdp"), 5),
        (_settings("single"), 5),
        (_settings("ddp", steps_per_epoch=105), 11),
        (_settings("ddp", steps_per_epoch=11, epochs=2), 11),
        (_settings("ddp", steps_per_epoch=20), 5),  # more would leave little to measure
        (_settings("ddp", steps_per_epoch=None), 5),  # only the data knows
    ],
)
def test_ddp_warms_up_until_it_takes_no_times_of_its_own(settings: dict[str, Any], steps: int) -> None:
    assert warmup_of(settings) == Train.warmup_iterations(settings) == steps


def test_measured_steps_are_what_the_warm_up_leaves_and_soaking_changes_no_trial() -> None:
    assert Train.measured_iterations(_settings(steps_per_epoch=105)) == 94
    assert Train.measured_iterations(_settings(device="cpu", steps_per_epoch=105)) == 100
    assert Train.measured_iterations(_settings()) is None
    (soak,) = (setting for setting in settings_of(Train) if setting.name == "soak")
    assert (soak.identity, soak.default) == (False, None)
