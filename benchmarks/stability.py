"""How many launches on a quiet machine are called unstable, by the rule of before and by that of now.

    python benchmarks/stability.py [--launches 40] [--ranks 2] [--window 2s] [--computing]

Launches of one configuration: ranks that sleep, unless --computing (and always on a GPU). Before, a launch
was unsteady when the medians of the two halves of its window differed by 2 % in the slowest rank of every
step, and its machine had changed when the bare matrix product of any rank differed by 2 %. Now every rank is
judged by its own noise. At most a tenth of the launches may be called unstable. Finished launches are kept in
the folder (--folder); the same command continues with it.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from aa import PACED, SMALL
from null_watcher import NullWatcher

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.launches import LaunchSummary
from scalescope.analysis.stability import changed_ranks
from scalescope.experiment.expand import expand
from scalescope.experiment.given import Given
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import load_run
from scalescope.results.run_folder import EXPERIMENT, RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.plan import Plan
from scalescope.studies.request import Request

MOST = 0.1  # of the launches
GROUP = 5  # launches, as a configuration usually has
BEFORE = 0.02
COMPUTING = {**SMALL, "hidden_dim": 1024, "input_dim": 1024, "batch_size": 256}


def measured(asked: argparse.Namespace, folder_path: Path) -> Configuration:
    """All launches; those already in the folder are not repeated."""
    launcher = LocalLauncher()
    try:
        machine = launcher.machine()
        job = dict(COMPUTING if asked.computing or machine.gpus else PACED)
        settings = {**job, "world_size": asked.ranks, "window": asked.window}
        flags = {name: (Given(str(value), name),) for name, value in settings.items()}
        experiment = Request(verb="train", flags=flags).experiment({"repeats": asked.launches})
        expansion = expand(experiment, machine)
        plan = Plan(experiment=expansion.experiment, trials=expansion.trials, machine=machine)
        folder = RunFolder.open(folder_path, resume=True)
        folder.write(EXPERIMENT, "# made by a benchmark\n")
        run_campaign(plan, launcher, folder, NullWatcher())  # type: ignore[arg-type]
        folder.close()
    finally:
        launcher.close()
    results = load_run(folder_path).results
    if asked.disturbed:
        results = tuple(dataclasses.replace(result, telemetry={}) for result in results)
    (configuration,) = configurations(results)
    return configuration


def was_unsteady(launch: LaunchSummary) -> bool:
    """The rule of before, on the slowest rank of every step."""
    half = len(launch.step_times_s) // 2
    first, second = launch.step_times_s[:half], launch.step_times_s[half:]
    return abs(statistics.median(second) / statistics.median(first) - 1.0) > BEFORE


def had_changed(launch: LaunchSummary) -> bool:
    """The rule of before, on the rank whose matrix product changed most."""
    return any(change is not None and abs(change) > BEFORE for change in launch.product_changes)


def count(name: str, launches: Sequence[LaunchSummary], unsteady: list[bool], changed: list[bool]) -> int:
    either = sum(a or b for a, b in zip(unsteady, changed, strict=True))
    print(
        f"{name}: {either} of {len(launches)} launches unstable "
        f"({sum(unsteady)} by their steps, {sum(changed)} by the matrix product)"
    )
    return either


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--window", default="2s")
    parser.add_argument("--computing", action="store_true", help="ranks that compute instead of sleeping")
    parser.add_argument("--disturbed", action="store_true", help="also use what other load disturbed")
    parser.add_argument("--folder", type=Path, default=Path("runs/stability"))
    asked = parser.parse_args()
    configuration = measured(asked, asked.folder)
    launches = configuration.launches
    count("before", launches, [*map(was_unsteady, launches)], [*map(had_changed, launches)])
    changes = changed_ranks([launch.product_changes for launch in launches])
    unstable = count(
        "now", launches, [bool(launch.drifting_ranks) for launch in launches], [*map(bool, changes)]
    )
    groups = [launches[n : n + GROUP] for n in range(0, len(launches), GROUP)]
    doubted = sum(
        bool(Configuration(trial=configuration.trial, launches=group, device="").instabilities())
        for group in groups
    )
    print(f"configurations of {GROUP} launches with any reason for doubt: {doubted} of {len(groups)}")
    sys.exit(0 if unstable <= MOST * len(launches) else 1)


if __name__ == "__main__":
    main()
