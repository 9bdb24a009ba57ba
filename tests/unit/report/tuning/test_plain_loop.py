"""The plain training script: valid Python with the lines of every lever, and without scalescope."""

import ast
from typing import Any, Literal

import pytest

from scalescope.catalog import cards
from scalescope.catalog.code_lines import ScriptContext
from scalescope.catalog.setting import Setting
from scalescope.report.tuning.code import lever_codes
from scalescope.report.tuning.plain_loop import LoopOptions, plain_loop

REFERENCE = "some/where/mine.py:build"


def script(context: ScriptContext, **changes: tuple[Any, Any]) -> str:
    lines = [line for lever in lever_codes(changes, context) for line in lever.added]
    return plain_loop(REFERENCE, lines, context)


def imported(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_script_compiles_with_every_value_that_tune_tries(device: Literal["cpu", "cuda"]) -> None:
    context = ScriptContext(device=device, world_size=2, strategy="ddp")
    levers = [setting for versions in cards.all_settings("train").values() for setting in versions]
    for setting in levers:
        for value in tried(setting, device):
            source = script(context, **{setting.name: (setting.default_for(device), value)})
            compile(source, "script.py", "exec")
            assert not any("scalescope" in name for name in imported(source))


def tried(setting: Setting, device: str) -> list[Any]:
    """The values of a lever as trials have them; none where a setting is not a lever."""
    if setting.lever is None:
        return []
    if setting.kind == "env":
        return [dict([str(value).split("=", 1)]) for value in setting.lever.tries_on(device)]
    return [*setting.lever.tries_on(device), *(4 * times for times in setting.lever.multiples)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_only_several_ranks_are_wrapped(world_size: int) -> None:
    source = script(ScriptContext(device="cpu", world_size=world_size, strategy="ddp"))
    assert ("DistributedDataParallel" in source) == (world_size > 1)
    assert ('init_process_group("gloo")' in source) == (world_size > 1)


def test_an_argument_that_the_wrapper_has_already_is_there_once() -> None:
    context = ScriptContext(device="cuda", world_size=2, strategy="ddp")
    source = script(context, strategy=("fsdp", "ddp"), static_graph=(False, True))
    assert "DistributedDataParallel(model, device_ids=[device.index], static_graph=True)" in source


def test_it_builds_the_workload_as_it_was_named() -> None:
    source = plain_loop("package.module:make", (), ScriptContext(device="cpu"), LoopOptions(batch_size=7))
    assert "SOURCE, FUNCTION = 'package.module', 'make'" in source
    assert "BATCH_SIZE, WINDOW_S, WARMUP_STEPS, SEED = 7, 3.0, 11, 0" in source


def test_a_file_is_named_with_its_whole_path() -> None:
    (line,) = [
        line for line in script(ScriptContext(device="cpu")).splitlines() if "SOURCE, FUNCTION =" in line
    ]
    assert "'/" in line and line.endswith("some/where/mine.py', 'build'")
