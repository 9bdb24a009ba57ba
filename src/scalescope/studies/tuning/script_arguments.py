"""Arguments of a training command's own that do what a lever does, by their names.

Only what stands in the command and in its script's text is looked at. A name is a guess at what an argument
does; what the arguments of Hugging Face's Trainer do is known.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalescope.errors import BadInput
from scalescope.experiment.command_line import words_of
from scalescope.experiment.trial import Value
from scalescope.report.tuning.tuning import ScriptArgument
from scalescope.results.stored.regular_files import Unreadable, read_bytes

_LARGEST_SCRIPT_BYTES = 1 << 20
_OPTION = re.compile(r"\b(?:add_argument|option)\(\s*((?:[\"']-[\w-]+[\"']\s*,?\s*)+)")
_QUOTED = re.compile(r"[\"'](--[\w-]+)[\"']")
_GLOBAL = re.compile(r"^([a-z]\w*) *=(?!=)", re.MULTILINE)
_SETS_GLOBALS = re.compile(r"\bexec\(|\bglobals\(\)")  # a script whose globals its command line sets
_PARSED_BY_TRAINER = ("HfArgumentParser", "TrainingArguments")
# Names that arguments for a setting have, the most telling first.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "compile": ("compile", "torch_compile", "torchcompile", "use_compile"),
    "precision": ("bf16", "amp", "use_amp", "mixed_precision", "precision", "dtype"),
    "fused_optimizer": ("fused", "fused_optimizer", "fused_adam", "fused_adamw", "use_fused"),
    "num_workers": ("num_workers", "workers", "n_workers", "dataloader_num_workers", "loader_workers"),
    "persistent_workers": ("persistent_workers",),
    "prefetch_factor": ("prefetch_factor",),
    "pin_memory": ("pin_memory", "pin_mem"),
    "bucket_cap_mb": ("bucket_cap_mb", "ddp_bucket_cap_mb"),
}
_OF_TRAINER: Mapping[tuple[str, Value], str] = {
    ("compile", "default"): "--torch_compile True",
    ("precision", "bf16"): "--bf16 True",
    ("precision", "tf32"): "--tf32 True",
    ("fused_optimizer", True): "--optim adamw_torch_fused",
    ("persistent_workers", True): "--dataloader_persistent_workers True",
    ("pin_memory", True): "--dataloader_pin_memory True",
}
_NUMBERS_OF_TRAINER = {
    "num_workers": "--dataloader_num_workers",
    "prefetch_factor": "--dataloader_prefetch_factor",
    "bucket_cap_mb": "--ddp_bucket_cap_mb",
}


def script_arguments(command: str, changes: Mapping[str, Value]) -> tuple[ScriptArgument, ...]:
    """The arguments for these settings and values, where the command or its script has some."""
    try:
        words = words_of(command)
    except BadInput:
        return ()
    path = next((word for word in words if word.endswith(".py")), None)
    text = "" if path is None else _text_of(Path(path))
    given = words[words.index(path) + 1 :] if path is not None else words
    found = (_argument(name, value, given, text) for name, value in changes.items())
    return tuple(argument for argument in found if argument is not None)


def _argument(name: str, value: Value, given: Sequence[str], text: str) -> ScriptArgument | None:
    if all(name in text for name in _PARSED_BY_TRAINER):
        number = _NUMBERS_OF_TRAINER.get(name)
        known = _OF_TRAINER.get((name, value)) if number is None else f"{number} {value}"
        if known is not None:
            return ScriptArgument(setting=name, text=known, is_known=True)
    options = {_plain(word): word.partition("=")[0] for word in _declared(text)}
    options |= {_plain(word): word.partition("=")[0] for word in given if word.startswith("--")}
    wanted = next((options[known] for known in _NAMES.get(name, ()) if known in options), None)
    return None if wanted is None else ScriptArgument(setting=name, text=wanted)


def _declared(text: str) -> list[str]:
    """The options that a script's text declares."""
    options = [option for call in _OPTION.findall(text) for option in _QUOTED.findall(call)]
    if _SETS_GLOBALS.search(text):
        options += [f"--{name}" for name in _GLOBAL.findall(text)]
    return options


def _plain(option: str) -> str:
    return option.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")


def _text_of(script: Path) -> str:
    """Nothing where it cannot be read; it is a file that a stored command may name."""
    try:
        return read_bytes(script, _LARGEST_SCRIPT_BYTES).decode("utf-8", "replace")
    except (OSError, Unreadable):
        return ""
