"""The words of a training command, with the values of a trial in place of its placeholders."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial

KNOWN = ("world_size", "batch_size", "global_batch_size")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def words_of(command: str) -> list[str]:
    """The command as a shell would split it; nothing is expanded."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(f"--command: {error}") from None
    if not words:
        raise BadInput("--command: it is empty")
    return words


def placeholders(command: str, varied: Mapping[str, Any]) -> frozenset[str]:
    """The names in braces that stand for values; other braces are part of the command."""
    return frozenset(_PLACEHOLDER.findall(command)) & {*KNOWN, *varied}


def filled_words(trial: Trial) -> list[str]:
    """The words of a trial's command with its values filled in."""
    values = {name: trial.settings.get(name) for name in KNOWN} | trial.varied
    return [_PLACEHOLDER.sub(lambda match: _value(match, values), word) for word in words_of(trial.command)]


def _value(match: re.Match[str], values: Mapping[str, Any]) -> str:
    name = match[1]
    if name not in values:
        return match[0]
    if values[name] is None:
        raise BadInput(f"the command has {{{name}}}, but no value for it; add --{name.replace('_', '-')}")
    return str(values[name])
