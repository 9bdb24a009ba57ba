"""Entry of a rank started as a fresh process: `python -m scalescope.worker.process.main JOBFILE`."""

import os
import sys
from pathlib import Path

from scalescope.parent_death import die_with_parent
from scalescope.results.ranks.rank_job import RankJob


def main() -> None:
    job = RankJob.from_text(Path(sys.argv[1]).read_text(encoding="utf-8"))
    die_with_parent(job.parent)
    enable_stack_dumps()
    from scalescope.worker.process.rank import run_rank

    code = run_rank(job)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch's own exit handlers may wait for threads that never end


def enable_stack_dumps() -> None:
    """SIGUSR2 writes all stacks to the log, so that the launcher can show where a rank hangs."""
    import faulthandler
    import signal

    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)


if __name__ == "__main__":
    main()
