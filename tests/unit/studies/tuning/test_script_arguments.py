"""Arguments of a command's own for what levers did, from its words and its script's text."""

import os
from pathlib import Path
from typing import Any

import pytest

from scalescope.report.tuning.sections import ScriptArgument
from scalescope.studies.tuning.levers import script_arguments

PARSED = """
parser.add_argument("-j", "--workers", type=int)
parser.add_argument(
    '--no-compile', action="store_true"
)
parser.add_argument("--epochs")
"""
GLOBALS = """
compile = True  # use PyTorch 2.0
dtype = 'bfloat16'
exec(open('configurator.py').read())
"""
TRAINER = """
from transformers import HfArgumentParser, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""


def found(folder: Path, text: str, words: str = "", **changes: Any) -> dict[str, ScriptArgument]:
    script = folder / "train.py"
    script.write_text(text)
    arguments = script_arguments(f"torchrun --workers 3 {script} {words}", changes)
    return {argument.setting: argument for argument in arguments}


def guessed(setting: str, text: str) -> dict[str, ScriptArgument]:
    return {setting: ScriptArgument(setting=setting, text=text)}


def test_options_that_a_parser_knows(tmp_path: Path) -> None:
    assert found(tmp_path, PARSED, num_workers=4) == guessed("num_workers", "--workers")
    assert found(tmp_path, PARSED, compile="default") == guessed("compile", "--no-compile")
    assert found(tmp_path, PARSED, fused_optimizer=True) == {}


def test_globals_count_where_the_command_line_sets_them(tmp_path: Path) -> None:
    assert found(tmp_path, GLOBALS, compile="default") == guessed("compile", "--compile")
    assert found(tmp_path, GLOBALS, precision="bf16") == guessed("precision", "--dtype")
    assert found(tmp_path, GLOBALS.replace("exec", "run"), compile="default") == {}


def test_words_of_the_command_behind_its_script(tmp_path: Path) -> None:
    assert found(tmp_path, "", "--compile=False", compile="default") == guessed("compile", "--compile")
    assert found(tmp_path, "", "--pin-mem", pin_memory=True) == guessed("pin_memory", "--pin-mem")
    assert found(tmp_path, "", "", num_workers=2) == {}  # torchrun's own words are not the script's


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"precision": "bf16"}, "--bf16 True"),
        ({"compile": "default"}, "--torch_compile True"),
        ({"fused_optimizer": True}, "--optim adamw_torch_fused"),
        ({"num_workers": 4}, "--dataloader_num_workers 4"),
    ],
)
def test_the_arguments_of_a_trainer_are_known(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    (setting,) = changes
    expected = {setting: ScriptArgument(setting=setting, text=text, is_known=True)}
    assert found(tmp_path, TRAINER, **changes) == expected


def test_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_text(PARSED + "#" * (1 << 20))
    for command in (f"python {tmp_path}/{name}.py" for name in ("pipe", "large", "missing")):
        assert script_arguments(command, {"num_workers": 4}) == ()
    assert script_arguments("python -m package", {"num_workers": 4}) == ()
    assert script_arguments("'", {"num_workers": 4}) == ()
