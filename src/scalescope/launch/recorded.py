"""Recorded launcher: launches nothing; stands for the machine on which a run was measured elsewhere."""

from pathlib import Path
from typing import NoReturn

from scalescope.catalog.measuring import Measuring
from scalescope.errors import CannotRun
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Watcher
from scalescope.results.run_folder import ENVIRONMENT, RunFolder, read_json


class RecordedLauncher:
    """Lets a study read a finished run the way it reads its own.

    `repeatable` is that of the launcher which measured: a study may plan by it.
    """

    def __init__(self, path: Path, *, repeatable: bool = False) -> None:
        self.repeatable = repeatable
        record = read_json(path / ENVIRONMENT)
        try:
            assert isinstance(record, dict)
            self._machine = Machine.from_json(record["machine"])
            # A run that went on on other hosts has them all, but was planned for those of one start.
            hosts = record["starts"][0] if "starts" in record else record["nodes"]
            self._nodes = {host: Machine.from_json(record["nodes"][host]) for host in hosts}
        except (AssertionError, AttributeError, KeyError, IndexError, TypeError):
            raise CannotRun(
                f"{path / ENVIRONMENT}: the machines of the run are missing or incomplete"
            ) from None

    def machine(self) -> Machine:
        return self._machine

    def nodes(self) -> dict[str, Machine]:
        return self._nodes

    def systems(self) -> NoReturn:
        raise AssertionError("the inspection of the hosts is recorded already")

    def check(self, trial: Trial) -> None:
        """What was measured could be launched."""

    def launch(
        self, trial: Trial, launch: int, folder: RunFolder, limits: Measuring, watcher: Watcher
    ) -> NoReturn:
        raise AssertionError("a recorded run is only read")

    def close(self) -> None:
        """Nothing was started."""
