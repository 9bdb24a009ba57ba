"""Real runs for tests of faults, and what they saw (`seen`), for the page of `--reliability FILE`."""

import os
from collections.abc import Callable

import pytest

from tests.faults.page import SEEN
from tests.gloo.conftest import run_here, start

__all__ = ["run_here", "start"]  # fixtures of real runs

Seen = Callable[[str], None]

# Runs a command with mounts of its own. Root needs no namespace of users for that, and may not get one.
WITH_OWN_MOUNTS = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Seen:
    """Say in a few words what happened, for the page."""

    def note(text: str) -> None:
        request.node.user_properties.append((SEEN, text))

    return note
