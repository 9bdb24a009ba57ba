"""When communication cannot be removed from ranks that train already."""

from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.worker.hooks.hook_guard import HookGuard
from scalescope.worker.hooks.wrappers import Wrappers


def replica(**facts: Any) -> Any:
    return SimpleNamespace(**{"_comm_hooks": [], "find_unused_parameters": False, **facts})


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"_comm_hooks": [print]}, "registers its own communication hook"),
        ({"find_unused_parameters": True}, "looks for unused parameters"),
    ],
)
def test_what_a_replica_does_itself_cannot_be_removed(facts: dict[str, Any], reason: str | None) -> None:
    wrappers = Wrappers({}, HookGuard(pytest.fail), silent=False)
    wrappers.replicas.extend([replica(), replica(**facts)])
    why = wrappers.why_not_silenced()
    assert why is None if reason is None else why is not None and reason in why
