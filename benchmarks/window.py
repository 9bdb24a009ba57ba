"""Whether a launch that measures for a time gives the same speed as one with a number of steps.

    python benchmarks/window.py [--paced] [--launches 20] [--folder runs/window]

For steps of about 2, 20 and 300 ms: launches of 40 steps (5 of them warm-up) and launches of --window 1.5s,
of the same training on one rank, in turns. Prints the ratio of the mean step times with its 95 % interval
(all launches, and pair by pair, which removes drift of the machine's speed), and the ratio of the
launch-to-launch standard deviations. --paced sleeps instead of computing, which avoids the noise of a shared
machine. Finished launches are kept in the folder; the same command continues with it.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from null_watcher import NullWatcher

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.statistics import Estimate, mean_of_logs, ratio_of_logs
from scalescope.experiment.expand import expand
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import load_run
from scalescope.results.run_folder import EXPERIMENT, RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.request import Request

STEPS_MS = {2: 256, 20: 1024, 300: 2048}  # time per step: width of the model
COUNTED = {"steps_per_epoch": "40"}
TIMED = {"window": "1.5"}
FIRST_BATCH = 32


def mlp(hidden: int, batch: int) -> dict[str, object]:
    return {"input_dim": hidden, "hidden_dim": hidden, "num_layers": 4, "batch_size": batch}


def paced(step_ms: int) -> dict[str, object]:
    return {"workload": "paced", "forward_ms": step_ms / 3, "backward_ms": step_ms * 2 / 3, "layer_mb": 0.01}


def plan_of(launcher: LocalLauncher, job: dict[str, object], lengths: Sequence[dict[str, str]]) -> Plan:
    """Training on one rank, once per window length."""
    trials: list[Trial] = []
    for length in lengths:
        asked = {"device": "cpu", "threads_per_rank": "1", **{n: str(v) for n, v in job.items()}, **length}
        flags = {name: (Given(value, name),) for name, value in asked.items()}
        expansion = expand(Request(verb="train", flags=flags).experiment({}), launcher.machine())
        trials += expansion.trials
    return Plan(experiment=expansion.experiment, trials=tuple(trials), machine=launcher.machine())


def measured(launcher: LocalLauncher, plan: Plan, repeats: int, path: Path) -> tuple[Configuration, ...]:
    """All launches of the plan; those already in the folder are not repeated."""
    launches = [
        Launch(trial, launch)
        for launch in range(repeats)
        for trial in (plan.trials if launch % 2 else reversed(plan.trials))
    ]
    folder = RunFolder.open(path, resume=path.exists())
    try:
        folder.write(EXPERIMENT, "# made by a benchmark\n")
        run_campaign(
            Plan(experiment=plan.experiment, trials=(), machine=plan.machine, chosen=tuple(launches)),
            launcher,
            folder,
            NullWatcher(),  # type: ignore[arg-type]
        )
    finally:
        folder.close()
    return configurations(load_run(path).results)


def batch_for(launcher: LocalLauncher, step_ms: int, path: Path) -> int:
    """The batch whose step takes about that long here; chosen once per folder."""
    chosen = path / "batch.json"
    if not chosen.exists():
        batch = FIRST_BATCH
        for attempt in range(3):
            plan = plan_of(launcher, mlp(STEPS_MS[step_ms], batch), [{"steps_per_epoch": "12"}])
            (configuration,) = measured(launcher, plan, 1, path / f"try{attempt}")
            batch = max(1, round(batch * step_ms / (1e3 * configuration.step_time_s.value)))
        chosen.write_text(json.dumps(batch))
    return int(json.loads(chosen.read_text()))


def row(step_ms: int, counted: Configuration, timed: Configuration) -> str:
    """Ratios are of times, so of rates the other way round; launches are in the order of their numbers."""
    unpaired = ratio_of_logs(counted.log_rates, timed.log_rates)
    pairs = zip(counted.log_rates, timed.log_rates, strict=True)
    paired = mean_of_logs([before - after for before, after in pairs])
    spreads = [statistics.stdev(side.log_rates) for side in (counted, timed)]
    return (
        f"{step_ms:>4} ms  {counted.measured_steps:>4} steps, {counted.window_s:>5.2f} s  "
        f"{timed.measured_steps:>4} steps, {timed.window_s:>5.2f} s  {shown(unpaired)}  {shown(paired)}  "
        f"{spreads[0]:>6.2%}  {spreads[1]:>6.2%}  {spreads[1] / spreads[0]:.2f}"
    )


def shown(ratio: Estimate) -> str:
    return f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--steps-ms", type=int, nargs="*", default=list(STEPS_MS))
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("runs/window"))
    arguments = parser.parse_args()
    print(
        "step     counted             for 1.5 s           timed / counted          "
        "pair by pair             spread of launches, ratio"
    )
    launcher = LocalLauncher()
    try:
        for step_ms in arguments.steps_ms:
            path = arguments.folder / f"{'paced' if arguments.paced else 'mlp'}-{step_ms}ms"
            path.mkdir(parents=True, exist_ok=True)
            if arguments.paced:
                job = paced(step_ms)
            else:
                job = mlp(STEPS_MS[step_ms], batch_for(launcher, step_ms, path))
            plan = plan_of(launcher, job, [COUNTED, TIMED])
            measured_configurations = measured(launcher, plan, arguments.launches, path / "run")
            by_id = {configuration.trial.trial_id: configuration for configuration in measured_configurations}
            counted, timed = (by_id[trial.trial_id] for trial in plan.trials)
            print(row(step_ms, counted, timed), flush=True)
    finally:
        launcher.close()


if __name__ == "__main__":
    main()
