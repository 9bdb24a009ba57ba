"""What levers are in a script: every lever that `tune` tries has lines or says what does the same."""

import ast
from typing import Any, Literal

import pytest

from scalescope.catalog import cards
from scalescope.catalog.code_lines import (
    PARTS,
    Code,
    CodeLine,
    Form,
    ScriptContext,
    argument,
    code,
    statement,
    variable,
)
from scalescope.catalog.setting import Lever, Setting

DEVICES: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")


def tried(setting: Setting, device: str) -> list[Any]:
    """The values of a lever as trials have them."""
    assert setting.lever is not None
    if setting.kind == "env":
        pairs = [str(value).split("=", 1) for value in setting.lever.tries_on(device)]
        return [{name: value} for name, value in pairs]
    return [*setting.lever.tries_on(device), *(4 * times for times in setting.lever.multiples)]


LEVERS = [
    pytest.param(setting, id=f"{setting.card}.{setting.name}")
    for versions in cards.all_settings("train").values()
    for setting in versions
    if setting.lever is not None
]
TRIED = [
    pytest.param(setting, value, device, id=f"{setting.card}.{setting.name}-{value}-{device}")
    for versions in cards.all_settings("train").values()
    for setting in versions
    if setting.lever is not None
    for device in DEVICES
    for value in tried(setting, device)
]


def code_of(setting: Setting, value: Any, device: Literal["cpu", "cuda"]) -> Code:
    assert setting.lever is not None
    says = setting.lever.code_of(value, ScriptContext(device=device, world_size=2, strategy="ddp"))
    assert says is not None, (
        f"{setting.card}.{setting.name} is a lever, but its card does not say what {value!r} is in a script: "
        "give Lever(code=...), which returns lines (catalog/code_lines.py), or Code(instead=...) where no "
        "line of PyTorch does it"
    )
    return says


@pytest.mark.parametrize("setting", LEVERS)
def test_every_value_that_tune_tries_has_lines_or_says_what_does_the_same(setting: Setting) -> None:
    """Lines are Python in the form of their part; what PyTorch does by itself needs none.

    Arguments of calls may be written out at their defaults too: a script may have others.
    """
    for device in DEVICES:
        for value in tried(setting, device):
            says = code_of(setting, value, device)
            assert bool(says.lines) != bool(says.instead), "lines, or a sentence"
            if says.instead:  # it becomes part of a sentence
                assert says.instead[0].islower() and not says.instead.endswith(".")
            for line in says.lines:
                check_form(line)
        off = setting.default_for(device)
        if setting.lever is not None and setting.lever.changes != "the job":
            says = code_of(setting, off, device)
            assert says.instead is None
            assert all(PARTS[line.part] == "arguments" for line in says.lines)


_WRITTEN: dict[Form, str] = {
    "statements": "{}",
    "arguments": "call({})",
    "contexts": "with {}: pass",
    "function": "{}(loader)",
    "replacement": "{}",
}


def check_form(line: CodeLine) -> None:
    if line.part == "shell":
        assert line.argument.isidentifier() and line.text
        return
    form = PARTS[line.part]
    assert bool(line.argument) == (form == "arguments")
    ast.parse(_WRITTEN[form].format(line.source))


def test_a_lever_that_changes_the_job_is_its_owners_to_change() -> None:
    context = ScriptContext(device="cpu")
    says = Lever(tries=(1,), changes="the job").code_of(1, context)
    assert says is not None and says.instead is not None and "your model" in says.instead
    assert Lever(tries=(1,)).code_of(1, context) is None  # which the tests above refuse


def test_the_parts_are_in_the_order_of_a_script() -> None:
    loop = ("before_loop", "copy", "forward", "backward", "gradients", "update")
    for chain in (("imports", "start"), ("model", "wrapper", "wrapped", "optimizer", *loop)):
        assert [part for part in PARTS if part in chain] == list(chain)


def test_lines_are_written_as_python_writes_them() -> None:
    assert argument("loader", "num_workers", 4).source == "num_workers=4"
    assert argument("wrapper", "bucket_cap_mb", None).source == "bucket_cap_mb=None"
    assert variable("NCCL_ALGO", "Ring").source == "NCCL_ALGO=Ring"
    assert statement("start", "x = 1").source == "x = 1"
    assert code(statement("start", "x = 1")).lines == (CodeLine(part="start", text="x = 1"),)
    few, many = (argument("loader", "num_workers", count) for count in (1, 4))
    assert few.target == many.target != argument("loader", "prefetch_factor", 4).target
