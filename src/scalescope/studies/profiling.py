"""Profiling: which launches are recorded beside the timed ones, and the command for another profiler."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.catalog.benchmarks.profile import ALL_RANKS
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.run_folder import EXPERIMENT
from scalescope.results.trace import TRACES

NSYS_SCRIPT = f"{TRACES}/nsys.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """What is to be recorded: so many steps of these ranks."""

    steps: int = 3
    ranks: str = ALL_RANKS
    ranges_only: bool = False  # for a profiler that is attached from outside
    nsys: bool = False

    def trials(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """A recorded launch beside every timed one: a timed launch is never recorded itself."""
        return tuple(
            trial.replace(
                benchmark="profile",
                profile_steps=self.steps,
                profile_ranks=self._ranks_of(trial),
                profile_with="nvtx" if self.ranges_only else "torch",
            )
            for trial in trials
        )

    def _ranks_of(self, trial: Trial) -> str:
        """The ranks to record, in order; one that does not exist is refused."""
        if self.ranks == ALL_RANKS:
            return ALL_RANKS
        words = self.ranks.split(",")
        if not all(word.isdigit() for word in words):
            raise BadInput(f"--profile-ranks {self.ranks!r}: expected all, or numbers such as 0,1")
        numbers = sorted({int(word) for word in words})
        if numbers[-1] >= trial.world_size:
            last = trial.world_size - 1
            raise BadInput(
                f"--profile-ranks {self.ranks}: there is no rank {numbers[-1]}; ranks are 0 to {last}"
            )
        return ",".join(map(str, numbers))


def nsys_command(folder: Path, steps: int, ranks: str) -> list[str]:
    """Nsight Systems around the same request, restricted to the recorded steps."""
    return [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--capture-range=nvtx",
        "--nvtx-capture=scalescope.captured",
        "--capture-range-end=stop",
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        "--trace-fork-before-exec=true",
        "--force-overwrite=true",
        f"--output={folder / TRACES / 'nsys'}",
        "scalescope",
        "train",
        str(folder / EXPERIMENT),
        "--profile",
        f"--profile-steps={steps}",
        f"--profile-ranks={ranks}",
        "--profile-ranges-only",
        f"--output-dir={folder / 'nsys'}",
    ]


def nsys_script(command: Sequence[str]) -> str:
    """The command as a file that can be run elsewhere."""
    return "#!/bin/sh\nexec " + " \\\n  ".join(shlex.quote(word) for word in command) + "\n"


def run_nsys(command: Sequence[str]) -> str:
    """Run it where it exists; says what became of it."""
    if shutil.which(command[0]) is None:
        return "nsys is not installed here; the command is in the file"
    ended = subprocess.run(
        list(command), check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if ended.returncode == 0:
        return "done"
    said = (ended.stderr or ended.stdout).strip().splitlines()
    return f"nsys ended with {ended.returncode}: {said[-1] if said else 'it said nothing'}"
