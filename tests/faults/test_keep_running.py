"""A training that is measured with --keep-running reaches its last step and saves, whatever happens to us."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.faults.conftest import Seen
from tests.faults.keep_running_cases import CASES, Case, run
from tests.speed import patience

pytestmark = [pytest.mark.gloo]
_TESTED = ("run folder removed", "disk full", "setuid", "clocks frozen", "SIGTERM")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.fault, marks=[pytest.mark.basic] if case.fault == "SIGTERM" else [])
        for case in CASES
        if case.fault in _TESTED
    ],
)
@pytest.mark.fault(52)
@pytest.mark.fault(53)
def test_the_training_goes_on(case: Case, seen: Seen) -> None:
    if case.needs_root and os.geteuid() != 0:
        pytest.skip("requires root")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # other users may enter it
        ended = run(case, Path(folder), patience(60))
    assert ended.saved, ended.output
    assert ended.handled == bool(case.signals)
    seen(f"{case.fault}: code {ended.code}, the training saved at its end")
