"""Which levers `tune` finds around a configuration, and why it leaves the others."""

import dataclasses

import pytest

from scalescope.errors import BadInput
from scalescope.experiment.machine import PrecisionSupport
from scalescope.studies.tuning.levers import KEEP_NUMERICS, Levers, find_levers, settings_of_trial
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES

RANKS = "requires more than one rank"
LOADER = "synthetic batches are already on the device; add --num-workers 0 for a loader"


def levers_for(*asked: str, gpus: int = 0, **texts: str) -> Levers:
    machine = with_gpus(gpus) if gpus else TWO_CORES
    return find_levers(ask(**texts), machine, asked)


def tried(levers: Levers) -> list[str]:
    return [candidate.text for candidate in levers.candidates]


def reasons(levers: Levers) -> dict[str, str]:
    return {lever.text: lever.reason for lever in levers.inapplicable}


def test_a_lever_brings_the_values_worth_trying_but_the_one_it_has() -> None:
    levers = levers_for("comm_hook", "bucket_cap_mb", world_size="2", bucket_cap_mb="25", comm_hook="fp16")
    assert tried(levers) == [
        "comm_hook bf16",
        "bucket_cap_mb none",
        "bucket_cap_mb 1.0",
        "bucket_cap_mb 5.0",
        "bucket_cap_mb 100.0",
    ]
    assert levers.inapplicable == ()
    for candidate in levers.candidates:
        differing = {
            name
            for name, value in candidate.trial.settings.items()
            if levers.baseline.settings[name] != value
        }
        assert differing == {candidate.name}
        assert candidate.changes == "rounding"


def test_one_value_can_be_named() -> None:
    assert tried(levers_for("bucket_cap_mb=7", "static_graph=no", world_size="2")) == [
        "bucket_cap_mb 7.0",
        "static_graph False",
    ]
    assert tried(levers_for("threads_per_rank=1", world_size="1")) == ["threads_per_rank 1"]
    assert tried(levers_for("precision=bf16", "precision")) == ["precision bf16"]  # once
    levers = levers_for("precision=fp32", "precision=bf16")
    assert tried(levers) == ["precision bf16"]
    assert reasons(levers) == {"precision fp32": "is the current setting"}
    assert tried(levers_for("pin_cores")) == ["pin_cores no"]  # the other way round
    assert tried(levers_for("pin_cores", gpus=1)) == ["pin_cores yes"]


def test_what_needs_loader_processes_is_tried_with_a_lever_that_brings_them() -> None:
    alone = levers_for("persistent_workers", num_workers="0")
    assert alone.candidates == ()
    assert "requires loader processes" in reasons(alone)["persistent_workers True"]
    together = levers_for("num_workers", "persistent_workers", num_workers="0")
    assert "persistent_workers True" in tried(together)
    assert "persistent_workers True" not in reasons(together)


@pytest.mark.parametrize(
    ("asked", "texts", "reason"),
    [
        ("pin_memory", {}, "requires a CUDA GPU"),
        ("prefetch_stream", {"num_workers": "2"}, "requires a CUDA GPU"),
        ("cudnn_benchmark", {"workload": "cnn"}, "requires a CUDA GPU"),
        ("memory_format", {}, "the model has no convolutions"),
        ("num_workers", {}, LOADER),
        ("persistent_workers", {}, LOADER),
        ("accumulation_steps", {}, RANKS),
        ("strategy", {}, RANKS),
        ("jit", {"jit": "true"}, "has no other value worth trying"),
        ("batch_size", {"global_batch_size": "64"}, "has no other value worth trying"),
    ],
)
def test_a_lever_that_does_not_apply_has_a_reason(asked: str, texts: dict[str, str], reason: str) -> None:
    levers = levers_for(asked, **texts)
    assert levers.candidates == ()
    assert reasons(levers) == {asked.partition("=")[0]: reason}


def test_a_value_that_was_typed_is_tried_unless_it_cannot_run() -> None:
    assert tried(levers_for("accumulation_steps=4")) == ["accumulation_steps 4"]
    assert tried(levers_for("env=OMP_NUM_THREADS=1", world_size="2")) == ["env OMP_NUM_THREADS=1"]
    assert reasons(levers_for("all", "jit")).keys().isdisjoint({"jit True"})


def test_a_value_that_is_refused_is_listed_with_the_refusal() -> None:
    levers = levers_for("precision")
    assert tried(levers) == ["precision bf16"]
    assert reasons(levers) == {
        "precision tf32": "precision tf32 requires a CUDA GPU; bf16 works on the CPU",
        "precision fp16": "precision fp16 requires a CUDA GPU; bf16 works on the CPU",
    }


WITHOUT_BF16 = dataclasses.replace(
    TWO_CORES, precisions=(PrecisionSupport(name="bf16", native=False, slowdown=96.0),)
)


@pytest.mark.parametrize("asked", ["precision", "all"])
def test_an_emulated_precision_is_not_tried_unless_it_is_typed(asked: str) -> None:
    levers = find_levers(ask(world_size="2"), WITHOUT_BF16, [asked])
    assert "precision bf16" not in tried(levers)
    assert reasons(levers)["precision bf16"] == (
        "bf16 is emulated on this processor: a matrix product takes about 96 times as long as in fp32; "
        "--levers precision=bf16 tries it"
    )
    typed = find_levers(ask(world_size="2"), WITHOUT_BF16, [asked, "precision=bf16"])
    assert "precision bf16" in tried(typed)
    assert "precision bf16" not in reasons(typed)


def test_what_cannot_run_at_all_is_not_offered_for_its_slowness() -> None:
    fp16 = PrecisionSupport(name="fp16", native=False)
    levers = find_levers(ask(), dataclasses.replace(TWO_CORES, precisions=(fp16,)), ["precision"])
    assert reasons(levers)["precision fp16"] == "precision fp16 requires a CUDA GPU; bf16 works on the CPU"


def test_hooks_and_levers_around_an_emulated_baseline_are_tried() -> None:
    assert tried(find_levers(ask(world_size="2"), WITHOUT_BF16, ["comm_hook"])) == [
        "comm_hook fp16",
        "comm_hook bf16",
    ]
    levers = find_levers(ask(world_size="2", precision="bf16"), WITHOUT_BF16, ["precision", "comm_hook"])
    assert tried(levers) == ["comm_hook fp16", "comm_hook bf16"]
    assert reasons(levers).keys() == {"precision tf32", "precision fp16"}


def test_a_gpu_and_a_loader_bring_the_copying_levers() -> None:
    asked = ("pin_memory", "non_blocking", "prefetch_stream", "attention")
    levers = levers_for(*asked, gpus=1, num_workers="2")
    assert tried(levers) == ["pin_memory True", "non_blocking True", "prefetch_stream True"]
    assert reasons(levers) == {"attention": "the model does not use scalescope's attention"}
    assert tried(levers_for("attention", gpus=1, workload="transformer")) == [
        "attention efficient",
        "attention math",
    ]
    assert len(tried(levers_for("attention", gpus=1, workload="transformer", precision="bf16"))) == 4


def test_a_memory_format_is_tried_for_a_custom_workload(tmp_path: object) -> None:
    custom_workload = "tests.unit.studies.test_levers:anything"
    assert tried(levers_for("memory_format", workload=custom_workload, data="own")) == [
        "memory_format channels_last"
    ]


def test_all_leaves_out_what_changes_the_job_and_names_everything_else() -> None:
    levers = levers_for("all", world_size="2", num_workers="2")
    names = {candidate.name for candidate in levers.candidates}
    assert {"precision", "compile", "comm_hook", "strategy", "fused_optimizer", "prefetch_factor"} <= names
    assert not names & {"batch_size", "accumulation_steps"}
    left_out = set(reasons(levers))
    assert {"pin_memory", "memory_format", "attention", "cudnn_benchmark"} <= left_out
    every = {text.split()[0] for text in left_out} | names
    moved = settings_of_trial(levers.baseline).values()
    assert every == {s.name for s in moved if s.lever is not None and s.lever.changes != "the job"}
    assert len(every) > 20


def test_all_names_what_it_leaves_to_those_who_ask() -> None:
    left_out = reasons(levers_for("all"))
    assert left_out["compile max-autotune"].endswith("; --levers compile=max-autotune tries it")
    assert left_out["jit True"].endswith("; --levers jit tries it")
    assert "compile max-autotune" in tried(levers_for("compile"))
    assert tried(levers_for("jit")) == ["jit True"]


def test_variables_are_a_lever_of_nccl() -> None:
    assert reasons(levers_for("env", world_size="2")) == {"env": "the variables worth trying are NCCL's"}
    levers = levers_for("env", world_size="2", gpus=2)
    assert "env NCCL_ALGO=Ring" in tried(levers)
    assert levers.candidates[0].trial.settings["env"] == {"NCCL_ALGO": "Ring"}


def test_a_variable_can_be_named_with_its_value() -> None:
    (candidate,) = levers_for(
        "env=NCCL_PROTO=LL", world_size="2", gpus=2, **{"env.NCCL_DEBUG": "WARN"}
    ).candidates
    assert candidate.trial.settings["env"] == {"NCCL_DEBUG": "WARN", "NCCL_PROTO": "LL"}
    assert candidate.text == "env NCCL_DEBUG=WARN NCCL_PROTO=LL"
    with pytest.raises(BadInput, match="RANK cannot be given: the launcher"):
        levers_for("env=RANK=1", world_size="2", gpus=2)
    with pytest.raises(BadInput, match=r"expected env=NAME=VALUE, got 'NCCL_PROTO'"):
        levers_for("env=NCCL_PROTO", world_size="2", gpus=2)


@pytest.mark.parametrize(
    ("cores", "threads", "values"),
    [(8, "8", [1, 4]), (8, "4", [1, 2, 8]), (8, "1", [2]), (2, "2", [1]), (3, "2", [1]), (1, "1", [])],
)
def test_fewer_threads_are_tried_and_more_where_cores_are_free(
    cores: int, threads: str, values: list[int]
) -> None:
    machine = dataclasses.replace(TWO_CORES, cores=cores)
    levers = find_levers(ask(threads_per_rank=threads), machine, ("threads_per_rank",))
    assert [candidate.value for candidate in levers.candidates] == values
    assert all("more threads than the" in reason for reason in reasons(levers).values())


def test_multiples_are_of_the_value_it_has() -> None:
    levers = levers_for("batch_size", batch_size="6")
    assert tried(levers) == [f"batch_size {6 * times}" for times in (2, 8, 32, 128)]
    assert {candidate.changes for candidate in levers.candidates} == {"the job"}


@pytest.mark.parametrize(
    ("asked", "changes"),
    [("hidden_dim=64", "the job"), ("optimizer=adamw", "the job"), ("threads_per_rank=1", "rounding")],
)
def test_a_setting_of_the_model_is_another_job(asked: str, changes: str) -> None:
    (candidate,) = levers_for(asked, threads_per_rank="2").candidates
    assert candidate.changes == changes


def test_a_pipeline_shares_one_batch_and_is_another_job() -> None:
    weak = {
        candidate.value: candidate.changes for candidate in levers_for("strategy", world_size="2").candidates
    }
    assert weak["pipeline"] == "the job"
    assert weak["fsdp"] == weak["zero1"] == "nothing"
    strong = levers_for("strategy", world_size="2", global_batch_size="64").candidates
    assert {candidate.changes for candidate in strong} == {"nothing"}


def test_another_strategy_leaves_behind_what_the_first_one_had() -> None:
    """As the file of a run has it, which spells out every setting."""
    levers = levers_for("strategy", world_size="2", strategy="ddp", bucket_cap_mb="25", static_graph="true")
    assert tried(levers) == ["strategy scratch_ddp", "strategy fsdp", "strategy zero1", "strategy pipeline"]
    trials = {str(candidate.value): candidate.trial for candidate in levers.candidates}
    assert "static_graph" not in trials["fsdp"].settings
    assert trials["zero1"].settings["bucket_cap_mb"] == 25.0


def test_an_unknown_name_gets_the_list_and_a_hint() -> None:
    with pytest.raises(BadInput, match=r"^--levers: .* no setting 'precison'; levers here: .*precision"):
        levers_for("precison")
    with pytest.raises(BadInput, match=r"; did you mean precision\?$"):
        levers_for("precison")
    with pytest.raises(BadInput, match="no setting 'comm_hook'"):  # one rank has no DDP
        levers_for("comm_hook")
    with pytest.raises(BadInput, match="no setting 'without_communication'"):
        levers_for("without_communication=true")


def test_a_setting_without_values_worth_trying_needs_one() -> None:
    with pytest.raises(BadInput, match=r"^--levers lr: has no default values to try; give one: lr=VALUE$"):
        levers_for("lr")
    with pytest.raises(
        BadInput, match=r"^--levers precision: must be one of .*, got 'bf17'; did you mean bf16\?$"
    ):
        levers_for("precision=bf17")


def test_a_sweep_is_refused_as_the_baseline() -> None:
    with pytest.raises(BadInput, match="requires a single configuration; these settings give 2"):
        levers_for("precision", batch_size="4,8")


def kept_numerics(*asked: str, **texts: str) -> Levers:
    return find_levers(ask(**texts), TWO_CORES, asked, keep_numerics=True)


def test_levers_that_change_numbers_can_be_left_out() -> None:
    levers = kept_numerics("all", world_size="2", num_workers="0")
    assert levers.candidates
    assert {candidate.changes for candidate in levers.candidates} == {"nothing"}
    left_out = {name for name, reason in reasons(levers).items() if reason == KEEP_NUMERICS}
    assert left_out >= {"compile", "fused_optimizer", "comm_hook"}
    levers = kept_numerics("fused_optimizer=yes", "batch_size=64")
    assert (tried(levers), set(reasons(levers).values())) == ([], {KEEP_NUMERICS})


def test_a_command_is_tried_with_what_an_expert_tries() -> None:
    command = {"workload": "command", "command": "python train.py"}
    levers = find_levers(ask(**command), TWO_CORES, ("all",))
    changes = {candidate.text: candidate.changes for candidate in levers.candidates}
    assert changes["compile default"] == changes["fused_optimizer True"] == "rounding"
    on_gpu = find_levers(ask(**command, device="cuda"), with_gpus(1), ("all",))
    found = set(tried(on_gpu))
    assert found >= {"precision tf32", "precision bf16", "compile default", "fused_optimizer True"}
    assert not found & {"precision fp16", "compile reduce-overhead", "compile max-autotune"}
    assert {candidate.changes for candidate in kept_numerics("all", **command).candidates} == {"nothing"}
