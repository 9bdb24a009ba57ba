"""Load in a job of SLURM, where ranks that a command starts by srun are not below us."""

from scalescope.launch.local.command.processes import CommandProcess
from scalescope.launch.telemetry.load import LoadMeter


class SlurmLoadMeter(LoadMeter):
    """Knows every process of a command as ours; what they compute is unknown once some are not below us.

    What such a process has computed is its daemon's as soon as it ends, and would look like others' load.
    """

    def __init__(self, process: CommandProcess) -> None:
        super().__init__()
        self._process = process
        self._knows_all = True

    def own_pids(self) -> frozenset[int]:
        return super().own_pids() | self._process.members()

    def _own_ticks(self) -> int | None:
        self._knows_all = self._knows_all and self.own_pids() == super().own_pids()
        return super()._own_ticks() if self._knows_all else None
