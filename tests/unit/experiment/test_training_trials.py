"""Training trials: defaults of the workload, batch arithmetic, stand-ins, epochs without a given length."""

import dataclasses
from pathlib import Path

import pytest

from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.experiment.explanations import NO_COMM, has_ablation, without_communication
from scalescope.experiment.trial import Trial
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES

_DDP_OF_PYTORCH = {
    "bucket_cap_mb": None,
    "static_graph": False,
    "broadcast_buffers": True,
    "gradient_as_bucket_view": False,
}


@pytest.fixture
def custom_workload(tmp_path: Path) -> str:
    """A user-written workload, as the command line names it."""
    (tmp_path / "mine.py").write_text("def build(): pass\n")
    return f"{tmp_path}/mine.py:build"


def _trial(**texts: str) -> Trial:
    (trial,) = expand(ask(**texts), TWO_CORES).trials
    return trial


def _of(trial: Trial, names: object) -> dict[str, object]:
    return {name: trial.settings[name] for name in names}  # type: ignore[attr-defined]


def test_a_custom_workload_starts_from_pytorchs_ddp(custom_workload: str) -> None:
    mine = _trial(workload=custom_workload, world_size="2")
    ours = _trial(world_size="2")
    assert _of(mine, _DDP_OF_PYTORCH) == _DDP_OF_PYTORCH
    assert all(ours.settings[name] != value for name, value in _DDP_OF_PYTORCH.items())
    assert (mine.settings["data"], mine.settings["batch_size"]) == ("own", 32)


def test_given_settings_override_the_defaults_of_a_workload(custom_workload: str) -> None:
    given = {
        "bucket_cap_mb": "25",
        "static_graph": "true",
        "broadcast_buffers": "false",
        "gradient_as_bucket_view": "true",
        "batch_size": "7",
    }
    trial = _trial(workload=custom_workload, world_size="2", **given)
    assert _of(trial, given) == {
        "bucket_cap_mb": 25.0,
        "static_graph": True,
        "broadcast_buffers": False,
        "gradient_as_bucket_view": True,
        "batch_size": 7,
    }


def test_each_workload_of_a_sweep_keeps_its_own_defaults(custom_workload: str) -> None:
    trials = expand(ask(workload=f"mlp,cnn,{custom_workload}", world_size="2"), TWO_CORES).trials
    assert [trial.settings["static_graph"] for trial in trials] == [True, True, False]
    assert [trial.settings["batch_size"] for trial in trials] == [256, 32, 32]


def test_a_workloads_batch_depends_on_the_device_and_its_depth_is_one_of_some() -> None:
    (trial,) = expand(ask(workload="cnn"), with_gpus(1)).trials
    wished = ("batch_size", "image_size", "channels", "depth", "num_classes")
    assert [trial.settings[name] for name in wished] == [256, 224, 64, 50, None]
    with pytest.raises(BadInput, match=r"^depth must be one of .* got 49; the nearest is 50$"):
        _trial(workload="cnn", depth="49")


def test_data_that_a_workload_cannot_read_is_refused(custom_workload: str) -> None:
    hint = "--workload transformer can use ag_news"
    with pytest.raises(BadInput, match=rf"^workload cnn cannot use data ag_news; .* synthetic; {hint}$"):
        _trial(workload="cnn", data="ag_news")
    with pytest.raises(BadInput, match=r"^workload mlp cannot use data own; it can use synthetic$"):
        _trial(workload="mlp", data="own")
    with pytest.raises(BadInput, match=r"cannot use data synthetic; it can use own$"):
        _trial(workload=custom_workload, data="synthetic")


@pytest.mark.parametrize(
    ("texts", "rank", "micro", "step", "mode"),
    [
        ({"batch_size": "8"}, 8, 8, 16, "weak"),
        ({"batch_size": "8", "accumulation_steps": "3"}, 24, 8, 48, "weak"),
        ({"global_batch_size": "48"}, 24, 24, 48, "strong"),
        ({"global_batch_size": "48", "accumulation_steps": "3"}, 24, 8, 48, "strong"),
    ],
)
def test_batches_of_a_rank_a_pass_and_a_step(
    texts: dict[str, str], rank: int, micro: int, step: int, mode: str
) -> None:
    trial = _trial(world_size="2", **texts)
    assert (trial.rank_batch_size, trial.micro_batch_size) == (rank, micro)
    assert (trial.samples_per_step, trial.mode) == (step, mode)


def test_the_ranks_of_a_pipeline_share_one_batch() -> None:
    weak = _trial(world_size="2", batch_size="8", strategy="pipeline")
    assert (weak.replicas, weak.rank_batch_size, weak.samples_per_step) == (1, 8, 8)
    assert weak.mode == "strong"  # more ranks do not bring more work
    strong = _trial(world_size="2", global_batch_size="8", strategy="pipeline")
    assert (strong.rank_batch_size, strong.samples_per_step, strong.mode) == (8, 8, "strong")


def test_a_global_batch_divides_over_ranks_and_accumulation_steps() -> None:
    message = r"^global_batch_size must be divisible by 2 ranks × 3 accumulation steps, got 50; use 48$"
    with pytest.raises(BadInput, match=message):
        _trial(world_size="2", global_batch_size="50", accumulation_steps="3")


@pytest.mark.parametrize(
    ("cores", "texts", "stands_in"),
    [
        (2, {"world_size": "4"}, True),
        (2, {"world_size": "2"}, False),  # one core each
        (2, {"world_size": "2", "threads_per_rank": "2"}, True),
        (8, {"world_size": "4"}, False),
    ],
)
def test_ranks_stand_in_only_where_there_are_more_than_cores(
    cores: int, texts: dict[str, str], stands_in: bool
) -> None:
    machine = dataclasses.replace(TWO_CORES, cores=cores)
    (trial,) = expand(ask(stand_in="true", **texts), machine).trials
    assert trial.settings["stand_in"] is stands_in
    (unasked,) = expand(ask(**texts), machine).trials
    assert unasked.settings["stand_in"] is False
    assert (trial.trial_id == unasked.trial_id) is not stands_in


def test_neither_a_gpu_nor_one_rank_alone_needs_a_stand_in() -> None:
    machine = with_gpus(4, cores=2)
    (trial,) = expand(ask(world_size="4", stand_in="true"), machine).trials
    assert trial.settings["stand_in"] is False
    assert _trial(world_size="4", stand_in="true").on_one_rank().settings["stand_in"] is False


def test_all_steps_of_an_epoch_are_counted_by_the_ranks(custom_workload: str) -> None:
    trial = _trial(workload=custom_workload, steps_per_epoch="all", epochs="3")
    assert trial.settings["steps_per_epoch"] is None
    assert trial.steps == 0
    assert _trial(workload=custom_workload, steps_per_epoch="10", epochs="3").steps == 30
    with pytest.raises(BadInput, match=r"^steps_per_epoch all: synthetic data has no end; give a number$"):
        _trial(steps_per_epoch="all")


def test_by_default_a_launch_measures_for_a_time_which_makes_no_other_trial() -> None:
    trial = _trial()
    assert _of(trial, ("steps_per_epoch", "window", "min_steps")) == {
        "steps_per_epoch": "auto",
        "window": 1.5,
        "min_steps": 5,
    }
    assert trial.steps == 0
    short, long = _trial(window="1"), _trial(window="20", min_steps="50")
    assert (short.settings["window"], long.settings["window"]) == (1.0, 20.0)
    assert short.trial_id == long.trial_id


@pytest.mark.parametrize(
    ("asked", "steps"),
    [({"steps_per_epoch": "20"}, 20), ({"epochs": "3"}, 40), ({"steps_per_epoch": "all"}, None)],
)
def test_a_number_of_steps_replaces_the_window(
    custom_workload: str, asked: dict[str, str], steps: int | None
) -> None:
    trial = _trial(workload=custom_workload, **asked)
    assert _of(trial, ("steps_per_epoch", "window")) == {"steps_per_epoch": steps, "window": None}


def test_fsdp_leaves_it_to_pytorch_what_the_root_frees() -> None:
    usual = _trial(strategy="fsdp", world_size="2")
    freeing = _trial(strategy="fsdp", world_size="2", reshard_after_forward="true")
    assert usual.settings["reshard_after_forward"] is None
    assert _trial(strategy="fsdp", world_size="2", reshard_after_forward="auto").trial_id == usual.trial_id
    assert usual.trial_id != freeing.trial_id


def test_soaking_needs_a_window() -> None:
    assert _trial(soak="60s").soak_s == 60.0
    for counted in ({"steps_per_epoch": "50"}, {"epochs": "2"}):
        with pytest.raises(BadInput, match="soak cannot be used with a number of steps"):
            _trial(soak="60s", **counted)


def test_strategies_can_do_without_communication_unless_ddp_looks_for_unused_parameters() -> None:
    for strategy in ("ddp", "scratch_ddp", "fsdp", "zero1"):
        silent = without_communication(_trial(strategy=strategy, world_size="2"))
        assert silent is not None and has_ablation(silent, NO_COMM)
    looking = _trial(world_size="2", find_unused_parameters="true", static_graph="false")
    assert without_communication(looking) is None
