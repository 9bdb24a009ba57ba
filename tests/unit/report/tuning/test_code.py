"""The lines for what won: grouped by part, in order, valid Python, and nothing but what changed."""

import ast
import json
from typing import Any

import pytest

from scalescope.catalog.code_lines import ScriptContext
from scalescope.report.tuning.code import (
    changes_between,
    code_json,
    code_section,
    context_of,
    lever_codes,
)
from tests.builders.commands import make_command
from tests.builders.results import make_trial

GPU = ScriptContext(device="cuda")
GPUS = ScriptContext(device="cuda", world_size=4, strategy="ddp")
CPU = ScriptContext(device="cpu")


def lines_of(changes: dict[str, tuple[Any, Any]], context: ScriptContext = GPU) -> list[str]:
    section = code_section(changes, context)
    ast.parse(section.code)
    return [line for line in section.code.splitlines() if line and not line.startswith("#")]


def test_bf16_is_one_context_around_the_forward_pass() -> None:
    assert lines_of({"precision": ("fp32", "bf16")}) == [
        "for batch in loader:",
        "    batch = [tensor.to(device) for tensor in batch]",
        '    with torch.autocast("cuda", dtype=torch.bfloat16):',
        "        loss = compute_loss(batch)",
        "    loss.backward()",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
    ]


def test_fp16_scales_the_loss_and_its_updates() -> None:
    lines = lines_of({"precision": ("fp32", "fp16")})
    assert lines[0] == 'scaler = torch.amp.GradScaler("cuda")'
    assert lines[-4:-1] == [
        "    scaler.scale(loss).backward()",
        "    scaler.step(optimizer)",
        "    scaler.update()",
    ]
    assert "    loss.backward()" not in lines and "    optimizer.step()" not in lines


def test_tf32_is_set_for_products_and_convolutions_and_changes_no_loop() -> None:
    assert lines_of({"precision": ("fp32", "tf32")}) == [
        'torch.set_float32_matmul_precision("high")',
        "torch.backends.cudnn.allow_tf32 = True",
    ]


def test_arguments_of_one_call_are_in_one_call() -> None:
    changes = {"pin_memory": (False, True), "num_workers": (None, 4), "prefetch_factor": (None, 8)}
    (call,) = lines_of(changes)
    assert call == "loader = DataLoader(dataset, ..., pin_memory=True, num_workers=4, prefetch_factor=8)"


def test_the_layout_comes_before_the_wrapper_and_compiling_after_it() -> None:
    changes = {
        "compile": ("none", "reduce-overhead"),
        "static_graph": (False, True),
        "memory_format": ("contiguous", "channels_last"),
        "comm_hook": ("none", "bf16"),
        "precision": ("fp32", "bf16"),
    }
    lines = lines_of(changes, GPUS)
    expected = [
        "model = model.to(memory_format=torch.channels_last)",
        "model = DistributedDataParallel(model, ..., static_graph=True)",
        "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        'compute_loss = torch.compile(compute_loss, mode="reduce-overhead")',
        "for batch in loader:",
        "    batch = map_tensors(to_channels_last, batch)",
        "    torch.compiler.cudagraph_mark_step_begin()",
        "        loss = compute_loss(batch)",
        "    loss = loss.clone()  # a CUDA graph overwrites its outputs",
        "    loss.backward()",
    ]
    assert [line for line in lines if line in expected] == expected


def test_what_ranks_apply_last_is_the_outermost_context() -> None:
    lines = lines_of({"precision": ("fp32", "bf16"), "attention": ("auto", "flash")})
    contexts = 'torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel(SDPBackend.FLASH_ATTENTION)'
    assert f"    with {contexts}:" in lines
    assert lines[0] == "from torch.nn.attention import SDPBackend, sdpa_kernel"


def test_a_function_that_two_levers_need_is_there_once() -> None:
    changes = {"memory_format": ("contiguous", "channels_last"), "prefetch_stream": (False, True)}
    section = code_section(changes, GPU)
    functions = [node.name for node in ast.parse(section.code).body if isinstance(node, ast.FunctionDef)]
    assert functions == ["map_tensors", "copied_ahead", "to_channels_last"]


def test_batches_that_are_copied_ahead_are_not_copied_again() -> None:
    lines = lines_of({"prefetch_stream": (False, True), "non_blocking": (False, True)})
    assert "for batch in copied_ahead(loader):" in lines
    assert not any("for tensor in batch]" in line for line in lines)


def test_nothing_is_copied_on_the_cpu() -> None:
    assert not any("to(device" in line for line in lines_of({"precision": ("fp32", "bf16")}, CPU))


def test_gradients_in_buckets_are_cleared_in_place() -> None:
    lines = lines_of({"gradient_as_bucket_view": (False, True)}, GPUS)
    assert lines[-1] == "    optimizer.zero_grad(set_to_none=False)"


def test_pytorchs_hook_for_bf16_is_not_for_gloo() -> None:
    gloo = ScriptContext(device="cpu", world_size=2, strategy="ddp")
    assert "model.register_comm_hook(None, send_bf16)" in lines_of({"comm_hook": ("none", "bf16")}, gloo)


def test_variables_are_set_in_the_shell() -> None:
    section = code_section({"env": ({"A": "1"}, {"A": "1", "NCCL_ALGO": "Ring"})}, GPUS)
    assert [line.strip("# ") for line in section.code.splitlines()[1:]] == ["export NCCL_ALGO=Ring"]
    ast.parse(section.code)


def test_lines_that_the_script_has_already_are_not_repeated_and_others_are_removed() -> None:
    section = code_section({"precision": ("fp16", "bf16"), "compile": ("max-autotune", "default")}, GPU)
    assert "torch.bfloat16" in section.code and "    loss.backward()" in section.code
    assert set(section.lines) == {
        'Remove: compute_loss = torch.compile(compute_loss, mode="max-autotune")',
        "Remove: torch.compiler.cudagraph_mark_step_begin()",
        "Remove: loss = loss.clone()  # a CUDA graph overwrites its outputs",
        'Remove: scaler = torch.amp.GradScaler("cuda")',
        'Remove: torch.autocast("cuda", dtype=torch.float16)',
    }


def test_an_argument_with_another_value_replaces_the_old_one() -> None:
    (lever,) = lever_codes({"num_workers": (1, 4)}, GPU)
    assert [line.source for line in lever.added] == ["num_workers=4"] and lever.removed == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pin_cores": ("auto", "yes")}, "pin_cores yes: no line of PyTorch; start each rank with `taskset"),
        ({"strategy": ("ddp", "fsdp")}, "strategy fsdp: no line of PyTorch; call fully_shard"),
        ({"hidden_dim": (64, 128)}, "hidden_dim 128: no line of PyTorch; it changes the job"),
        ({"seed": (0, 1)}, "seed 1: no line of PyTorch; its card has no code"),
    ],
)
def test_a_lever_without_lines_says_so(changes: dict[str, tuple[Any, Any]], expected: str) -> None:
    section = code_section(changes, GPUS)
    assert section.code == "" and section.lines[0].startswith(expected)


def test_a_setting_is_read_from_the_card_of_the_strategy() -> None:
    """The buckets of scratch_ddp are not DDP's."""
    other = ScriptContext(device="cpu", world_size=2, strategy="scratch_ddp")
    (lever,) = lever_codes({"bucket_cap_mb": (50.0, 5.0)}, other)
    assert lever.added == () and lever.instead


def test_the_same_as_plain_data() -> None:
    changes = {"precision": ("fp32", "bf16"), "pin_cores": ("auto", "yes")}
    rows = {row["setting"]: row for row in json.loads(json.dumps(code_json(changes, GPU)))}
    assert rows["precision"] == {
        "setting": "precision",
        "old": "fp32",
        "new": "bf16",
        "lines": [{"part": "forward", "code": 'torch.autocast("cuda", dtype=torch.bfloat16)'}],
        "remove": [],
        "instead": None,
    }
    assert rows["pin_cores"]["lines"] == [] and "taskset" in rows["pin_cores"]["instead"]


def test_changes_are_the_settings_that_both_trials_have() -> None:
    baseline = make_trial(seed=0)
    winner = baseline.replace(precision="bf16")
    before = baseline.settings["precision"]
    assert changes_between(baseline, winner) == {"precision": (before, "bf16")}
    assert changes_between(baseline, baseline.replace(only_here=1)) == {}
    context = context_of(baseline)
    assert (context.device, context.world_size, context.strategy) == (
        baseline.device,
        baseline.world_size,
        baseline.strategy,
    )


SCRIPT = ScriptContext(device="cuda", world_size=2, strategy="script")


def test_levers_of_a_command_are_arguments_of_its_own_calls_or_lines_of_their_own() -> None:
    changes = {
        "num_workers": (None, 4),
        "pin_memory": (None, True),
        "fused_optimizer": (False, True),
        "bucket_cap_mb": (None, 5.0),
        "static_graph": (None, True),
        "precision": (None, "bf16"),
        "compile": ("none", "default"),
        "comm_hook": ("none", "fp16"),
        "env": (None, {"NCCL_ALGO": "Ring"}),
    }
    text = code_section(changes, SCRIPT).code
    ast.parse(text)
    (loader,) = [line for line in text.splitlines() if line.startswith("loader = DataLoader(dataset, ...")]
    assert "num_workers=4" in loader and "pin_memory=True" in loader
    for part in (
        "DistributedDataParallel(model, ..., bucket_cap_mb=5.0, static_graph=True)",
        "fused=True",
        'with torch.autocast("cuda", dtype=torch.bfloat16):',
        "model.compile()",
        "model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
        "export NCCL_ALGO=Ring",
    ):
        assert part in text


def test_what_a_command_was_observed_to_do_is_no_change() -> None:
    baseline = make_command(ranks=2)
    winner = baseline.replace(num_workers=2, observed_batch_size=16, observed_unit=None)
    assert changes_between(baseline, winner) == {"num_workers": (None, 2)}
    assert context_of(winner).strategy == "script"


def test_threads_are_a_line_of_a_script_and_a_variable_of_a_command() -> None:
    fewer = {"threads_per_rank": (8, 1)}
    assert lines_of(fewer, CPU) == ["torch.set_num_threads(1)"]
    command = ScriptContext(device="cpu", strategy="script")
    assert "#   export OMP_NUM_THREADS=1" in code_section(fewer, command).code
