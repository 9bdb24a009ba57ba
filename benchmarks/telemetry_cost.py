"""The cost of telemetry (sampling GPUs and processors) for the training it samples.

    python benchmarks/telemetry_cost.py [--pairs 10] [--steps 400] [--device cpu|cuda]

Launches of the same training with and without telemetry, in pairs and in random order: the ratio of their
step times with its interval. Claimed: at most 1.005 on a GPU.
"""

import argparse
import random
import tempfile
from pathlib import Path

from null_watcher import NullWatcher

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.statistics import ratio_of_logs
from scalescope.experiment.expand import expand
from scalescope.experiment.given import Given
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import load_run
from scalescope.results.run_folder import RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.request import Request


def measured(launcher: LocalLauncher, pairs: int, asked: dict[str, object], directory: str) -> Configuration:
    """Pairs of launches, one with and one without telemetry; prints their ratio."""
    flags = {name: (Given(str(value), name),) for name, value in asked.items()}
    expansion = expand(Request(verb="train", flags=flags).experiment({}), launcher.machine())
    (trial,) = expansion.trials
    folder = RunFolder.open(Path(directory) / "run", resume=False)
    (folder.path / "experiment.yaml").write_text("# made by a benchmark\n")
    for pair in range(pairs):
        for has_telemetry in random.sample((True, False), 2):
            launcher.telemetry = has_telemetry
            launch = 2 * pair + has_telemetry
            plan = Plan(
                experiment=expansion.experiment,
                trials=(trial,),
                machine=launcher.machine(),
                chosen=(Launch(trial, launch),),
            )
            run_campaign(plan, launcher, folder, NullWatcher())  # type: ignore[arg-type]
    results = load_run(folder.path).results
    folder.close()
    sampled = configurations([result for result in results if result.launch % 2])
    without = configurations([result for result in results if result.launch % 2 == 0])
    samples = [result.telemetry["samples"] for result in results if result.launch % 2]
    asking = [result.telemetry.get("asking_gpus_s", 0.0) for result in results if result.launch % 2]
    window_s = sum(launch.window_s for launch in sampled[0].launches)
    cost = ratio_of_logs(without[0].log_rates, sampled[0].log_rates)
    step_ms = sampled[0].step_time_s.value * 1e3
    print(f"samples per window: {min(samples)} to {max(samples)}; step {step_ms:.3f} ms")
    print(f"step time with ÷ without telemetry: {cost.value:.4f} [{cost.low:.4f}, {cost.high:.4f}]")
    print(f"GPU queries took {sum(asking) / window_s:.3%} of the windows: an upper bound of the cost")
    return sampled[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args()
    asked = {
        "steps_per_epoch": given.steps,
        "batch_size": given.batch_size,
        "device": given.device,
        "precision": given.precision,
    }
    launcher = LocalLauncher()
    try:
        with tempfile.TemporaryDirectory() as directory:
            summary = measured(launcher, given.pairs, asked, directory).telemetry
    finally:
        launcher.close()
    print(summary)


if __name__ == "__main__":
    main()
