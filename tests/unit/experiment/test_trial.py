"""A trial's identity: what distinguishes trials, what must never change it, and which are the same job."""

import dataclasses
from typing import Any

import pytest

from scalescope.catalog.placement import Placement
from scalescope.catalog.strategies.ddp import Ddp
from scalescope.experiment.explanations import BATCH, LENGTH, job_key
from scalescope.experiment.trial import Trial

# Written out in full, so that a changed default does not reach it.
FIXED: dict[str, Any] = {
    "backend": "gloo",
    "batch_size": 32,
    "benchmark": "train",
    "broadcast_buffers": False,
    "bucket_cap_mb": 25.0,
    "device": "cpu",
    "env": None,
    "epochs": 1,
    "global_batch_size": None,
    "gradient_as_bucket_view": True,
    "hidden_dim": 64,
    "input_dim": 64,
    "lr": 0.01,
    "num_layers": 2,
    "optimizer": "sgd",
    "output_dim": 8,
    "oversubscribe": False,
    "precision": "fp32",
    "seed": 0,
    "static_graph": True,
    "steps_per_epoch": 20,
    "strategy": "ddp",
    "threads_per_rank": 1,
    "warmup_steps": 5,
    "with_preloaded_input": False,
    "without_communication": False,
    "workload": "mlp",
    "world_size": 2,
}


def test_every_setting_counts_but_those_whose_card_says_otherwise() -> None:
    trial = Trial(settings=FIXED)
    for name in (*sorted(set(FIXED) - {"benchmark"}), "from_the_future"):
        assert trial.replace(**{name: "another"}).trial_id != trial.trial_id
    assert trial.replace(window=3.0, soak=60.0, observed_batch_size=8).trial_id == trial.trial_id


def test_the_order_of_settings_and_variables_does_not_count() -> None:
    trial = Trial(settings=FIXED)
    assert Trial(settings=dict(reversed(FIXED.items()))).trial_id == trial.trial_id
    in_order, other = {"A": "1", "B": "2"}, {"B": "2", "A": "1"}
    assert trial.replace(env=in_order).trial_id == trial.replace(env=other).trial_id


def test_a_trial_on_one_rank_does_not_share_its_device() -> None:
    alone = Trial(settings=FIXED).replace(world_size=4, oversubscribe=True).on_one_rank()
    assert alone == Trial(settings=FIXED).replace(world_size=1)


def test_options_are_the_settings_of_a_card() -> None:
    trial = Trial(settings=FIXED)
    assert dataclasses.asdict(trial.options(Ddp)) == {
        "bucket_cap_mb": 25.0,
        "broadcast_buffers": False,
        "static_graph": True,
        "gradient_as_bucket_view": True,
        "find_unused_parameters": False,  # of settings that a trial lacks, the default
        "comm_hook": "none",
    }
    assert trial.options(Placement).world_size == trial.world_size == 2
    assert trial.device == "cpu"


def test_a_replaced_trial_is_sorted_and_leaves_the_first_as_it_was() -> None:
    trial = Trial(settings={"benchmark": "train", "world_size": 2})
    changed = trial.replace(world_size=4, backend="gloo")
    assert list(changed.settings.items()) == [("backend", "gloo"), ("benchmark", "train"), ("world_size", 4)]
    assert trial.settings == {"benchmark": "train", "world_size": 2}


@pytest.mark.parametrize(
    ("ablations", "ending"),
    [
        ((), ""),
        (("without_communication",), ", no communication"),
        (("with_preloaded_input",), ", preloaded input"),
        (("without_communication", "with_preloaded_input"), ", no communication, preloaded input"),
    ],
)
def test_an_ablation_is_named(ablations: tuple[str, ...], ending: str) -> None:
    trial = Trial(settings={**FIXED, **dict.fromkeys(ablations, True)})
    assert trial.label == f"ddp, 2 ranks, batch 32{ending}"


# the same job


SETTINGS = {"benchmark": "train", "batch_size": 8, "global_batch_size": None, "epochs": 1, "lr": 0.1}


def test_two_trials_are_one_job_where_only_ignored_settings_differ() -> None:
    trial = Trial(settings=SETTINGS)
    larger = trial.replace(batch_size=16)
    assert job_key(trial) != job_key(larger)
    assert job_key(trial, ignoring=BATCH) == job_key(larger, ignoring=BATCH)
    assert job_key(trial, ignoring=LENGTH) != job_key(larger, ignoring=LENGTH)
    assert job_key(Trial(settings=SETTINGS)) == job_key(Trial(settings=dict(reversed(SETTINGS.items()))))


def test_a_workload_s_file_counts_by_its_name_and_function() -> None:
    here, there, other = (
        job_key(Trial(settings={**SETTINGS, "workload": workload}))
        for workload in (
            "jobs/my model.py:build",
            "/home/me/jobs/my model.py:build",
            "jobs/my model.py:large",
        )
    )
    assert here == there
    assert here != other
