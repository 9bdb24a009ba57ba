"""Recording traces with `train --profile`."""

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.catalog.benchmarks.profile import ALL_RANKS
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.report.section import Section
from scalescope.results.files import write_atomically
from scalescope.results.run_folder import EXPERIMENT
from scalescope.results.traces.events import TRACES
from scalescope.studies.flags import read_flags
from scalescope.studies.study import Report

FLAGS = {
    "steps": "--profile-steps",
    "ranks": "--profile-ranks",
    "ranges_only": "--profile-ranges-only",
    "nsys": "--nsys",
}
NSYS_SCRIPT = f"{TRACES}/nsys.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """What to record: a number of steps of these ranks."""

    steps: int = 3
    ranks: str = ALL_RANKS
    ranges_only: bool = False  # for a profiler that is attached from outside
    nsys: bool = False

    def flags(self) -> tuple[str, ...]:
        """The flags that ask for it."""
        words = ["--profile"]
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            if value != getattr(Profiling(), name):
                words.append(flag if value is True else f"{flag}={value}")
        return tuple(words)

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> "Profiling | None":
        """What these flags ask for; None without --profile."""
        given = read_flags(flags)
        if "profile" not in given:
            return None
        chosen = {name: given[flag[2:]] for name, flag in FLAGS.items() if flag[2:] in given}
        return cls(**{name: int(value) if name == "steps" else value for name, value in chosen.items()})  # type: ignore[arg-type]

    def trials(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """A recorded launch for every timed one: a timed launch is never recorded itself."""
        self._check(max((trial.world_size for trial in trials), default=1))
        return tuple(
            trial.replace(
                benchmark="profile",
                profile_steps=self.steps,
                profile_ranks=ranks,
                profile_with="nvtx" if self.ranges_only else "torch",
            )
            for trial in trials
            if (ranks := self._ranks_of(trial))
        )

    def _check(self, most: int) -> None:
        """Refuse what is not a list of ranks, or names a rank that no trial has."""
        if self.ranks == ALL_RANKS:
            return
        words = self.ranks.split(",")
        if not all(word.isascii() and word.isdecimal() for word in words):
            raise BadInput(f"--profile-ranks {self.ranks!r}: expected all, or numbers such as 0,1")
        last = max(map(int, words))
        if last >= most:
            raise BadInput(
                f"--profile-ranks {self.ranks}: there is no rank {last}; ranks are 0 to {most - 1}"
            )

    def _ranks_of(self, trial: Trial) -> str:
        """The chosen ranks that a trial has, in order."""
        if self.ranks == ALL_RANKS:
            return ALL_RANKS
        numbers = sorted({int(word) for word in self.ranks.split(",")})
        return ",".join(str(number) for number in numbers if number < trial.world_size)


def nsys_command(folder: Path, profiling: Profiling, ranks: int) -> list[str]:
    """Nsight Systems around the same request, restricted to the recorded steps of every rank."""
    folder = folder.absolute()
    return [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--capture-range=nvtx",
        "--nvtx-capture=scalescope.captured",
        f"--capture-range-end=repeat:{ranks}",
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        "--trace-fork-before-exec=true",
        "--force-overwrite=true",
        f"--output={folder / TRACES / 'nsys'}",
        "scalescope",
        "train",
        str(folder / EXPERIMENT),
        "--profile",
        f"--profile-steps={profiling.steps}",
        f"--profile-ranks={profiling.ranks}",
        "--profile-ranges-only",
    ]


def nsys_script(command: Sequence[str]) -> str:
    """The command as a file that can be run elsewhere."""
    return "#!/bin/sh\nexec " + " \\\n  ".join(shlex.quote(word) for word in command) + "\n"


def run_nsys(command: Sequence[str]) -> str:
    """Run it where it exists; returns how that ended."""
    if shutil.which(command[0]) is None:
        return "nsys is not installed here; the command is in the file"
    # A session of its own: all that it started ends with it, also when we are stopped.
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = process.communicate()[0].strip().splitlines()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if process.returncode == 0:
        return "done"
    return f"nsys ended with {process.returncode}: {output[-1] if output else 'no output'}"


def with_nsys(report: Report, profiling: Profiling, *, run: bool) -> Report:
    """Write the command for Nsight Systems, and run it where it exists, but not from attached ranks."""
    assert report.run is not None and report.path is not None
    ranks = max(result.trial.world_size for result in report.run.results)
    command = nsys_command(report.path, profiling, ranks)
    script = report.path / NSYS_SCRIPT
    script.parent.mkdir(exist_ok=True)
    write_atomically(script, nsys_script(command))
    ended = run_nsys(command) if run else "not run by ranks of another launcher"
    line = f"Nsight Systems: {script}: {ended}."
    return dataclasses.replace(report, sections=(*report.sections, Section(lines=(line,))))
