"""Expansion: lists multiply out, `auto` is settled for the machine, what cannot be measured is refused."""

import dataclasses

import pytest

from scalescope.catalog import cards
from scalescope.catalog.setting import Setting, settings_of
from scalescope.catalog.strategies.ddp import Ddp
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment import expand as expanding
from scalescope.experiment.expand import expand, resolve_placement
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES

(BATCH,) = cards.all_settings("train")["batch_size"]
(BUCKET,) = (setting for setting in settings_of(Ddp) if setting.name == "bucket_cap_mb")
BROKEN_GPU = dataclasses.replace(TWO_CORES, gpu_problem="the driver is too old")


def only_trial(machine: Machine = TWO_CORES, **texts: str) -> Trial:
    (trial,) = expand(ask(**texts), machine).trials
    return trial


@pytest.mark.parametrize(("device", "machine"), [("cpu", TWO_CORES), ("cuda", with_gpus(1))])
def test_nothing_asked_is_one_trial_with_every_default_of_its_device(device: str, machine: Machine) -> None:
    trial = only_trial(machine)
    chosen = cards.cards_of_trial("train", {"workloads": "mlp", "strategies": "single"})
    defaults = {setting.name: setting.default_for(device) for card in chosen for setting in settings_of(card)}
    settled = {
        "benchmark": "train",
        "device": device,
        "backend": {"cpu": "gloo", "cuda": "nccl"}[device],
        "strategy": "single",
        "threads_per_rank": machine.cores,
    }
    assert trial.settings == {**defaults, **settled}
    assert list(trial.settings) == sorted(trial.settings)


def test_each_device_gets_its_own_defaults() -> None:
    settings = only_trial(with_gpus(2), device="cpu").settings
    assert (settings["device"], settings["backend"]) == ("cpu", "gloo")
    assert settings["batch_size"] == BATCH.default_for("cpu")
    trials = expand(ask(device="cpu,cuda"), with_gpus(1)).trials
    batch_sizes = {trial.device: trial.settings["batch_size"] for trial in trials}
    assert batch_sizes == {"cpu": BATCH.default_for("cpu"), "cuda": BATCH.default_for("cuda")}
    assert batch_sizes["cpu"] != batch_sizes["cuda"]


def test_what_the_machine_lacks_is_reported() -> None:
    assert expand(ask(), TWO_CORES).notes == ("No GPU found: measuring on the CPU.",)
    assert expand(ask(device="cpu"), TWO_CORES).notes == ()
    (note,) = expand(ask(device="cpu"), dataclasses.replace(TWO_CORES, system="Darwin")).notes
    assert note.startswith("macOS: ranks cannot be pinned")


def test_lists_multiply_out_in_the_order_given() -> None:
    trials = expand(ask(batch_size="8,4", seed="1,2"), TWO_CORES).trials
    assert [(trial.settings["batch_size"], trial.settings["seed"]) for trial in trials] == [
        (8, 1),
        (8, 2),
        (4, 1),
        (4, 2),
    ]
    trials = expand(ask(env__A="x,y"), TWO_CORES).trials
    assert [trial.settings["env"] for trial in trials] == [{"A": "x"}, {"A": "y"}]
    assert len({trial.trial_id for trial in trials}) == 2


def test_auto_is_single_on_one_rank_and_ddp_above_which_brings_its_settings() -> None:
    single, ddp = expand(ask(world_size="1,2"), TWO_CORES).trials
    assert (single.strategy, ddp.strategy, ddp.world_size) == ("single", "ddp", 2)
    assert "bucket_cap_mb" not in single.settings
    assert ddp.settings["bucket_cap_mb"] == BUCKET.default_for("cpu")
    trials = expand(ask(strategy="single,ddp"), TWO_CORES).trials
    assert len({trial.trial_id for trial in trials}) == 2
    with pytest.raises(BadInput, match=r"^strategy single runs on one rank; use ddp for 2 ranks$"):
        expand(ask(strategy="single", world_size="1,2"), TWO_CORES)
    single, ddp = expand(ask(bucket_cap_mb="10", world_size="1,2"), TWO_CORES).trials
    assert "bucket_cap_mb" not in single.settings
    assert ddp.settings["bucket_cap_mb"] == 10.0


def test_two_ways_to_ask_for_the_same_trial_are_one_trial() -> None:
    for name, texts in (("strategy", "auto,single"), ("device", "auto,cpu"), ("threads_per_rank", "auto,2")):
        assert len(expand(ask(**{name: texts}), TWO_CORES).trials) == 1


def test_so_many_trials_are_allowed_and_one_more_only_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    thousand = ",".join(str(number) for number in range(1, 1001))
    huge = ask(seed=thousand, lr=thousand, input_dim=thousand, output_dim=thousand)
    message = r"^the lists combine to 1,000,000,000,000 trials; add --yes to run more than 10,000$"
    with pytest.raises(BadInput, match=message):  # before it is multiplied out
        expand(huge, TWO_CORES)
    monkeypatch.setattr(expanding, "MOST_TRIALS", 4)
    assert len(expand(ask(seed="1,2", lr="1,2"), TWO_CORES).trials) == 4
    five = ask(seed="1,2,3,4,5")
    with pytest.raises(BadInput, match="combine to 5 trials"):
        expand(five, TWO_CORES)
    assert len(expand(five, TWO_CORES, many=True).trials) == 5


def test_a_global_batch_is_shared_and_makes_the_mode_strong() -> None:
    trials = expand(ask(global_batch_size="64", world_size="1,2"), TWO_CORES).trials
    assert [trial.rank_batch_size for trial in trials] == [64, 32]
    assert {trial.mode for trial in trials} == {"strong"}
    assert {trial.settings["batch_size"] for trial in trials} == {None}


def test_a_global_batch_that_does_not_divide_is_refused_with_one_that_does() -> None:
    for total, near in (("65", 64), ("1", 2)):
        message = rf"^global_batch_size must be divisible by 2 ranks, got {total}; use {near}$"
        with pytest.raises(BadInput, match=message):
            expand(ask(global_batch_size=total, world_size="2"), TWO_CORES)


def test_warmup_must_leave_steps_to_measure() -> None:
    for warmup, epochs, total in (("5", "1", 5), ("9", "1", 5), ("10", "2", 10)):
        message = rf"^warmup_steps must be less than the launch's {total} steps, got {warmup}; "
        with pytest.raises(BadInput, match=message):
            expand(ask(warmup_steps=warmup, steps_per_epoch="5", epochs=epochs), TWO_CORES)
    assert only_trial(warmup_steps="5", steps_per_epoch="5", epochs="2").settings["epochs"] == 2


def test_more_ranks_than_gpus_are_refused_unless_all_trials_oversubscribe() -> None:
    with pytest.raises(CannotRun, match=r"^4 ranks on 2 GPU\(s\): .*--oversubscribe") as caught:
        expand(ask(world_size="2,4"), with_gpus(2))
    assert caught.value.exit_code == 3
    expansion = expand(ask(world_size="4", oversubscribe="true"), with_gpus(2))
    assert [trial.world_size for trial in expansion.trials] == [4]
    assert expansion.notes == ("4 ranks share 2 GPU(s): this is not a scaling measurement.",)
    with pytest.raises(CannotRun, match="--oversubscribe"):
        expand(ask(world_size="4", oversubscribe="true,false"), with_gpus(2))
    assert expand(ask(world_size="1,2"), with_gpus(2)).notes == ()


def test_more_ranks_than_cores_are_allowed_and_noted() -> None:
    (note,) = expand(ask(world_size="3", device="cpu"), TWO_CORES).notes
    assert note.startswith("3 ranks on 2 cores: ranks compete for cores")
    assert expand(ask(world_size="2", device="cpu"), TWO_CORES).notes == ()


def test_nccl_without_cuda_suggests_gloo() -> None:
    with pytest.raises(CannotRun, match=r"^--backend nccl requires CUDA GPUs; use --backend gloo$"):
        expand(ask(backend="nccl"), TWO_CORES)
    with pytest.raises(CannotRun, match=r"use --backend gloo$"):
        expand(ask(backend="nccl", device="cpu"), with_gpus(1))


def test_a_torch_without_a_backend_takes_another_or_is_refused() -> None:
    machine = dataclasses.replace(with_gpus(1), backends=("gloo",))
    assert only_trial(machine).settings["backend"] == "gloo"
    with pytest.raises(CannotRun, match=r"^--backend nccl: this torch has only gloo$"):
        expand(ask(backend="nccl"), machine)
    with pytest.raises(CannotRun, match=r"^--backend gloo: this torch has only no backend$"):
        expand(ask(), dataclasses.replace(TWO_CORES, backends=()))


def test_a_gpu_that_torch_cannot_use_is_not_passed_over() -> None:
    for device in ("auto", "cuda"):
        with pytest.raises(CannotRun, match=r"the driver is too old; use --device cpu") as caught:
            expand(ask(device=device), BROKEN_GPU)
        assert caught.value.exit_code == 3
    assert only_trial(BROKEN_GPU, device="cpu").device == "cpu"
    with pytest.raises(CannotRun, match=r"^--device cuda: torch finds no GPU here"):
        expand(ask(device="cuda"), TWO_CORES)


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_gpu_precisions_cannot_run_on_the_cpu(precision: str) -> None:
    with pytest.raises(
        CannotRun, match=rf"^precision {precision} requires a CUDA GPU; bf16 works on the CPU$"
    ):
        expand(ask(precision=precision), TWO_CORES)
    assert only_trial(with_gpus(1), precision=precision).settings["precision"] == precision


def test_threads_are_the_share_of_the_largest_world_for_every_world() -> None:
    for cores, worlds, threads in ((8, "1,2,4", 2), (8, "3", 2), (8, "1", 8), (2, "4", 1)):
        trials = expand(ask(world_size=worlds), dataclasses.replace(TWO_CORES, cores=cores)).trials
        assert {trial.settings["threads_per_rank"] for trial in trials} == {threads}
    trials = expand(ask(world_size="2", threads_per_rank="auto,3"), TWO_CORES).trials
    assert [trial.settings["threads_per_rank"] for trial in trials] == [1, 3]


def test_the_record_holds_the_threads_that_the_variable_sets() -> None:
    """A value that is no plain number leaves the share of the cores, which is 2 on one rank here."""
    for value, threads in (("3", 3), ("0", 1), ("2,1", 2), ("²", 2), ("", 2), ("9" * 5000, 2)):
        experiment = ask().with_settings(env=({"OMP_NUM_THREADS": value},))
        (trial,) = expand(experiment, TWO_CORES).trials
        assert trial.settings["threads_per_rank"] == threads
        assert trial.settings["env"] == {"OMP_NUM_THREADS": value}
    with pytest.raises(BadInput, match=r"--threads-per-rank cannot be used with --env OMP_NUM_THREADS"):
        expand(ask(threads_per_rank="2", env__OMP_NUM_THREADS="2"), TWO_CORES)


def test_the_owner_of_an_unused_setting_is_named_as_it_is_asked_for() -> None:
    with pytest.raises(
        BadInput, match=r"^num_classes is a setting of cnn and transformer, which no trial here"
    ):
        expand(ask(num_classes="7"), TWO_CORES)
    for name in cards.names("strategies"):
        for setting in settings_of(cards.card("strategies", name)):
            with pytest.raises(
                BadInput, match=rf"^{setting.name} is a setting of .*\b{name}\b.*, which no trial here"
            ):
                expand(ask(**{setting.name: _any_value(setting), "world_size": "1"}), TWO_CORES)


def _any_value(setting: Setting) -> str:
    if setting.kind == "bool":
        return "true"
    return setting.choices[0] if setting.choices else "5"


def test_the_filled_request_holds_every_default_that_all_trials_share() -> None:
    filled = expand(ask(world_size="1,2"), TWO_CORES).experiment.settings
    assert filled["world_size"] == (1, 2)
    assert filled["batch_size"] == (BATCH.default_for("cpu"),)
    assert filled["bucket_cap_mb"] == (BUCKET.default_for("cpu"),)
    assert filled["threads_per_rank"] == (1,)
    assert filled["strategy"] == ("auto",)
    assert not {"without_communication", "benchmark"} & set(filled)
    filled = expand(ask(device="cpu,cuda"), with_gpus(1)).experiment.settings
    assert "batch_size" not in filled
    assert filled["device"] == ("cpu", "cuda")
    assert "lr" in filled


def test_placement_alone_changes_nothing_else() -> None:
    resolved, notes = resolve_placement(ask(seed="1,2"), TWO_CORES)
    assert resolved.settings == {
        "seed": (1, 2),
        "device": ("cpu",),
        "world_size": (1,),
        "threads_per_rank": (2,),
    }
    assert notes == ["No GPU found: measuring on the CPU."]
