"""Entry of a rank started as a fresh process: `python -m scalescope.worker.process.main JOBFILE`."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from scalescope.parent_death import die_with_parent
from scalescope.results.ranks import RankJob


def main() -> None:
    job = RankJob.from_text(Path(sys.argv[1]).read_text(encoding="utf-8"))
    die_with_parent(os.getppid())
    ignore_preemption_warning()
    enable_stack_dumps()
    from scalescope.worker.process.rank import run_rank

    leave_process(run_rank(job))


def leave_process(code: int) -> NoReturn:
    """Exit at once, with what was printed: torch's own exit handlers may wait for threads that never end."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also where the log cannot be written, or the user's code closed it
        os._exit(code)


def ignore_preemption_warning() -> None:
    """Let SIGUSR1 pass: schedulers send it to all processes of a job, and the command line ends the run."""
    import signal

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def enable_stack_dumps() -> None:
    """SIGUSR2 writes all stacks to the log; the launcher then shows where a rank hangs."""
    import faulthandler
    import signal

    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)


if __name__ == "__main__":
    main()
