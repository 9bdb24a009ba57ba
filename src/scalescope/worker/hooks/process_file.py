"""What each process of a command records about itself; the launcher uses it to say what was missing."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from scalescope.results.ranks import PROCESSES, AttachJob
from scalescope.worker.process.node import node_name


class ProcessFile:
    """PID.json of this process; a forked child has a file of its own once it has something to say.

    Nodes may use the same process ids, so in a job the node's name is put in front.
    """

    def __init__(self, job: AttachJob) -> None:
        self._folder = Path(job.directory) / PROCESSES
        self._prefix = f"{node_name()}-" if job.node else ""
        self._facts: dict[str, Any] = {
            "torch": False,
            "steps": 0,
            "rank": None,
            "world_size": None,
            "error": None,
            "refused": None,
        }

    def update(self, **facts: Any) -> None:
        self._facts.update(facts)
        self.write()

    def write(self) -> None:
        """Write the file; a launch that is over has removed the folder, and a disk may be full."""
        with contextlib.suppress(Exception):
            self._folder.mkdir(exist_ok=True)
            path = self._folder / f"{self._prefix}{os.getpid()}.json"
            temporary = path.with_suffix(".new")
            temporary.write_text(json.dumps({"pid": os.getpid(), **self._facts}), encoding="utf-8")
            temporary.replace(path)
