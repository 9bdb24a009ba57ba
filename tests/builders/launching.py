"""Shorthand for tests of launchers: the usual limits of a launch, and whether a process is there."""

from pathlib import Path
from typing import Any

from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of


def usual_limits(**changes: Any) -> Measuring:
    """The limits that a launch has unless a user sets them, with some changed."""
    usual: dict[str, Any] = {setting.name: setting.default for setting in settings_of(Measuring)}
    return Measuring(**{**usual, **changes})


def lives(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
