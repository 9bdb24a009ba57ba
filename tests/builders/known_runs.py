"""Runs made by the fake launcher, so that every number in a report is known beforehand."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import RankPlacement
from scalescope.results.result import Result
from scalescope.results.run import Run
from scalescope.results.run_folder import RunFolder
from scalescope.studies.scaling.scale import with_explanations
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

MODEL = CostModel(
    fixed_s=0.004,
    per_sample_s=0.0001,
    wrapper_s=0.0005,
    exposed_comm_s={2: 0.002, 4: 0.006},
    launch_noise=0.004,
    step_noise=0.002,
)


class NoWatcher:
    """Hears nothing."""

    def placed(self, ranks: Sequence[RankPlacement]) -> None: ...

    def advanced(self, fraction: float) -> None: ...


def make_trials(*, explained: bool = False, **settings: Any) -> tuple[Trial, ...]:
    """The trials of a request; lists are sweeps; `explained` adds baselines and ablations."""
    asked = {"steps_per_epoch": 13, "warmup_steps": 3, "input_dim": 512, "hidden_dim": 512, **settings}
    given = {name: value for name, value in asked.items() if value is not None}
    values = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    flags = {
        name: tuple(Given(str(value), f"--{name}") for value in listed) for name, listed in values.items()
    }
    trials = expand(build_experiment("scale", "train", {}, flags, {}), TWO_CORES).trials
    return with_explanations(trials) if explained else trials


def make_run(trials: Iterable[Trial], launches: int = 5, model: CostModel = MODEL, **changes: Any) -> Run:
    """All launches of the trials; `changes` are of every result."""
    launcher = FakeLauncher(model)
    folder = RunFolder(Path("unused"))
    results = []
    for trial in trials:
        for launch in range(launches):
            outcome = launcher.launch(trial, launch, folder, None, NoWatcher())  # type: ignore[arg-type]
            values: dict[str, Any] = {
                "trial_id": trial.trial_id,
                "launch": launch,
                "order": len(results),
                "status": outcome.status,
                "settings": dict(trial.settings),
                "started_at": f"2026-01-15T10:30:{len(results) % 60:02d}+00:00",
                "duration_s": 1.0,
                "environment_id": "made-up",
                "ranks": outcome.records,
            }
            results.append(Result(**{**values, **changes}))
    return Run(path=Path("/runs/known"), environment={}, results=tuple(results), warnings=())
