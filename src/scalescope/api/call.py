"""A measuring call from Python, before anything of the controller is loaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.errors import BadInput
from scalescope.results.ranks import JOB_VARIABLE, RANK_VARIABLE


class CalledInRank(BadInput):
    """A measuring call was reached while a rank loaded the user's file: it would launch itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What was passed to `scalescope.scale` and the like; `options` are names that are not settings."""

    build: Any = None
    settings: Mapping[str, Any]
    progress: bool | None = None  # None: at a terminal
    resume: bool = False
    options: tuple[str, ...] = ()


def refuse_in_rank(verb: str) -> None:
    """Raise where this process is a rank: ranks import the user's file, and must not measure it again."""
    if RANK_VARIABLE in os.environ or JOB_VARIABLE in os.environ:
        raise CalledInRank(
            f'scalescope.{verb}() was called inside a rank: put the call under `if __name__ == "__main__":`'
        )
