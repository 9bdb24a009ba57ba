"""MemoryKills: whether the kernel ended a process for want of memory during a launch, by its counters."""

import re
import signal
from pathlib import Path

from scalescope.host_memory import group_files

OUT_OF_MEMORY = "ended a process because its control group was out of memory"
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class MemoryKills:
    """The counts before a launch, to compare with; ranks are in the control group of whoever asks."""

    def __init__(self, root: Path = Path("/")) -> None:
        # The nearest group counts what happens to its processes, whichever limit above them was reached.
        files = group_files(root, "memory.events", "memory.oom_control")
        self._of_group = next((path for path in files if _count(path) is not None), None)
        self._of_host = root / "proc/vmstat"
        self._before = {path: _count(path) for path in (self._of_group, self._of_host) if path is not None}

    def ended(self, exit_code: int | None) -> bool:
        """Whether a process with that exit code was ended for want of memory: its group's counter rose."""
        return exit_code == -signal.SIGKILL and self.in_group

    @property
    def in_group(self) -> bool:
        """Whether the kernel ended any process of this control group since."""
        return self._rose(self._of_group)

    def text(self, exit_code: int | None) -> str:
        """What the counters say about a process that was killed; empty where they say nothing."""
        if self.ended(exit_code):
            return f": the kernel {OUT_OF_MEMORY}"
        if exit_code == -signal.SIGKILL and self._rose(self._of_host):
            return ": likely out of memory, for which the kernel ended a process of this host meanwhile"
        return ""

    def _rose(self, path: Path | None) -> bool:
        if path is None:
            return False
        before, now = self._before[path], _count(path)
        return before is not None and now is not None and now > before


def _count(path: Path) -> int | None:
    try:
        match = _COUNT.search(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return int(match[1]) if match else None
