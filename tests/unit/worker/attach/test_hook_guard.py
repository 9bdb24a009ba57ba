"""Errors of ours stay inside hooks; what a script's signal handler raises there goes on."""

import pytest

from scalescope.catalog.setting import settings_of
from scalescope.worker.attach.hook_guard import HookGuard


def test_an_error_of_ours_is_reported_and_not_raised() -> None:
    errors: list[Exception] = []
    with HookGuard(errors.append):
        settings_of(None)  # type: ignore[arg-type]
    assert len(errors) == 1


def test_what_the_script_raises_inside_a_hook_goes_on() -> None:
    def handler() -> None:
        raise ValueError("stop the training")

    errors: list[Exception] = []
    with pytest.raises(ValueError, match="stop"), HookGuard(errors.append):
        handler()
    with pytest.raises(KeyboardInterrupt), HookGuard(errors.append):
        raise KeyboardInterrupt
    assert errors == []
