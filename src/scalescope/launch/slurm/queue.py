"""SLURM's commands: submit a job, read its state, cancel it."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scalescope.errors import CannotRun
from scalescope.inspection import run_tool
from scalescope.secret_variables import given_values

_LIMIT_S = 60  # longer than for other tools: a busy controller may accept a job and answer late
_JOB = re.compile(r"([0-9]+)(;[A-Za-z0-9_.-]+)?")
COMPLETED, PENDING = "COMPLETED", "PENDING"
_OVER = (  # an unknown state may be that of a job that still runs
    COMPLETED,
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "FAILED",
    "GONE",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
# What a surrounding shell has of its own job or ranks is not of the one that is submitted; where SLURM is and
# who we are stays.
_FOREIGN = re.compile(
    r"SLURM_(?!CONF$|CLUSTERS$|JWT$).*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_(ADDR|PORT)"
)


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job, in SLURM's words, and why it waits if it does."""

    word: str
    reason: str = ""

    @property
    def is_over(self) -> bool:
        return self.word in _OVER

    def __str__(self) -> str:
        has_reason = self.reason not in ("", "None") and self.word == PENDING
        return self.word.lower().replace("_", " ") + (f" ({self.reason})" if has_reason else "")


GONE = JobState("GONE")  # SLURM forgets jobs a while after their end


class Unanswered(CannotRun):
    """The controller could not be asked this time."""


def submit(script: Path) -> str:
    """Hand a script to sbatch; returns the number of the job."""
    output = _run("sbatch", "--parsable", str(script)).strip()
    jobs = [match[1] for line in output.splitlines() if (match := _JOB.fullmatch(line.strip()))]
    if not jobs:  # a site's filters may print more than the number, before or after it
        raise CannotRun(f"sbatch printed no job number, but {output!r}")
    return jobs[-1]


def state_of(job: str) -> JobState:
    """The state of a job now."""
    try:
        line = _run("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r").split("\n")[0]
    except CannotRun as error:
        if "Invalid job id" in str(error):
            return GONE
        raise Unanswered(str(error)) from None
    word, _, reason = line.strip().partition("|")
    return JobState(word, reason) if word else GONE


def steps_of(job: str) -> frozenset[str]:
    """The steps of a job that srun started and that still run, as JOB.STEP."""
    lines = _run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i").split()
    return frozenset(line for line in lines if line.rpartition(".")[2].isdecimal())


def cancel(job: str) -> None:
    """End a job or a step; one that has ended already is left alone."""
    _run("scancel", job)


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return inherited | given_values()  # which no file of the job holds


def _run(*command: str) -> str:
    try:
        done = run_tool(command, limit_s=_LIMIT_S, env=_environment())
    except FileNotFoundError:
        raise CannotRun(
            f"{command[0]} was not found: --launcher slurm must run where jobs can be submitted; "
            "use --dry-run to show the script"
        ) from None
    except OSError as error:
        raise CannotRun(f"{command[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{command[0]} did not answer within {_LIMIT_S} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise CannotRun(f"{command[0]} failed: {lines[-1].removeprefix(f'{command[0]}: error: ')}")
    return done.stdout
