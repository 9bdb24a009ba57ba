"""The end of a rank's process: its code is kept, whatever became of its output."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "output",
    ["sys.stdout.close()", "sys.stdout = open('/dev/full', 'w'); print('lost')", "print('kept')"],
    ids=["closed", "full", "usual"],
)
def test_a_rank_leaves_with_its_code(output: str) -> None:
    script = (
        f"import sys; from scalescope.worker.process.main import leave_process; {output}; leave_process(3)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (3, "")
    assert run.stdout == ("kept\n" if "kept" in output else "")
