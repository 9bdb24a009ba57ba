"""The line of a log that says best why a training command crashed."""

import re
from pathlib import Path

from scalescope.launch.local.logs import tail_of
from scalescope.results.printable import printable
from scalescope.results.ranks.secondary_errors import is_secondary_error

_READ_BYTES = 256 << 10
_LONGEST = 300
_BEGIN = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"^\[[\w-]+\]:\s?")  # `[rank0]: ` of torch, `[default0]:` of torchrun
# What launchers raise because a rank has failed.
_OF_LAUNCHERS = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
    "torch.multiprocessing.spawn.ProcessExitedException",
    "torch.multiprocessing.spawn.ProcessRaisedException",
    "subprocess.CalledProcessError",
)


def crash_line(log: Path) -> str:
    """The error of the last traceback that is the script's own, or else the last line; empty without any."""
    text = tail_of(log, _READ_BYTES).decode("utf-8", "replace")
    lines = [_RANK_PREFIX.sub("", line.rstrip()) for line in text.splitlines()]
    errors = _errors(lines)
    of_script = [line for line in errors if not line.startswith(_OF_LAUNCHERS)]
    first_causes = [line for line in of_script if not is_secondary_error(line)]
    if not of_script and errors:  # the launcher's own words come before its traceback
        lines = lines[: [line.endswith(_BEGIN) for line in lines].index(True)]
    printed = [line.strip() for line in lines if line.strip()]
    candidates = first_causes or of_script or printed or errors
    return printable(candidates[-1])[:_LONGEST] if candidates else ""


def _errors(lines: list[str]) -> list[str]:
    """The line after each traceback: the first that is not indented."""
    errors, inside = [], False
    for line in lines:
        if line.endswith(_BEGIN):  # a prompt may stand in front of it
            inside = True
        elif inside and line and not line[0].isspace():
            errors.append(line)
            inside = False
    return errors
