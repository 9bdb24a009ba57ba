"""Fake launcher: simulates launches from a known cost model, so that the analysis can be tested against it.

Each benchmark has a module in `simulated.benchmarks`, found by its name.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scalescope.catalog.measuring import Measuring
from scalescope.experiment.explanations import Phase
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, Watcher
from scalescope.launch.validity import judge
from scalescope.results.other_load import OtherLoad
from scalescope.results.run_folder import RunFolder
from tests.simulated.cluster.model import ClusterModel
from tests.simulated.costs import HOST, CostModel, simulated_placement

__all__ = ["TWO_CORES", "ClusterModel", "CostModel", "FakeLauncher"]

TWO_CORES = Machine(
    host=HOST,
    system="Linux",
    architecture="none",
    cpu_model="fake processor",
    cores=2,
    memory_bytes=1 << 34,
    python_version="3.11.0",
    torch_version="2.13.0",
    cuda_version=None,
    nccl_version=None,
    driver_version=None,
    backends=("gloo",),
    gpus=(),
    gpu_problem=None,
)


class FakeLauncher:
    """Simulates ranks from a cost model; `outcomes` replaces chosen ones, for instance by failures.

    The ranks of a `ClusterModel` need its `machine(ranks)`, which has its nodes.
    `loads` is what others use, by trial and by how many launches of any trial were made before.
    """

    repeatable = True
    ranks: int | None = None

    def __init__(
        self,
        model: CostModel | ClusterModel,
        machine: Machine = TWO_CORES,
        outcomes: Callable[[Trial, int], Outcome | None] = lambda trial, launch: None,
        loads: Callable[[Trial, int], OtherLoad] = lambda trial, attempt: OtherLoad(),
        load_at_start: OtherLoad | None = None,
    ) -> None:
        self._model = model
        self._machine = machine
        self._outcomes = outcomes
        self._loads = loads
        self._load_at_start = load_at_start or OtherLoad()
        self.launched: list[tuple[str, int]] = []
        self.deadlines: list[float | None] = []  # of these launches; simulating one takes no time

    def expect(self, trials: Iterable[Trial]) -> None:
        """Nothing is loaded for them."""

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return None

    def machine(self) -> Machine:
        return self._machine

    def nodes(self) -> dict[str, Machine]:
        if isinstance(self._model, ClusterModel):
            return self._model.hosts(len(self._machine.gpus))
        return {self._machine.host: self._machine}

    def systems(self) -> dict[str, dict[str, Any]]:
        return {host: {} for host in self.nodes()}

    def other_load(self) -> OtherLoad:
        return self._load_at_start

    def check(self, trial: Trial) -> None:
        pass

    def launch(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: Measuring,
        watcher: Watcher,
        *,
        deadline: float | None = None,
        phases: Sequence[Phase] = (),
    ) -> Outcome:
        self.launched.append((trial.trial_id, launch))
        self.deadlines.append(deadline)
        given = self._outcomes(trial, launch)
        if given is not None:
            return given
        simulation = importlib.import_module(f"tests.simulated.benchmarks.{trial.benchmark}")
        outcome: Outcome = simulation.simulate(self._model, trial, launch)
        if outcome.status != "ok":
            return outcome
        records = outcome.records
        watcher.placed([simulated_placement(record) for record in records])
        watcher.advanced(1.0)
        load = self._loads(trial, len(self.launched) - 1).to_json()
        return dataclasses.replace(judge(trial, records), telemetry={"load": load} if load else {})

    def close(self) -> None:
        pass
