"""A job is a plain description: a script that returns one loads neither torch nor the controller for it."""

import subprocess
import sys

import pytest

import scalescope
from scalescope.job import Job

_LOADED = """
import sys
import scalescope
scalescope.Job(model=None, data=[])
names = {"torch", "pydantic", "scalescope.studies", "scalescope.results"}
sys.exit(", ".join(names & set(sys.modules)) or 0)
"""


def test_a_job_loads_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_has_the_job() -> None:
    assert scalescope.Job is Job


def test_parts_of_a_job_have_names() -> None:
    with pytest.raises(TypeError):
        Job(None, [])  # type: ignore[misc, call-arg]
    job = Job(model=1, data=2)
    assert (job.loss, job.optimizer, job.step) == (None, None, None)
