"""Whether forked launches are unbiased: at most 5 % of identical ones may be called different.

    python benchmarks/aa_launches.py [--groups 40] [--fresh]

A group is ten launches of one two-rank trial. Every split of the ten into five and five is a comparison of
identical launches; Welch's interval on the launches' log rates should exclude zero in 5 % of them.
"""

import argparse
import math
import statistics
import tempfile
import time
from itertools import combinations
from pathlib import Path

from null_watcher import NullWatcher

from scalescope.analysis.launches import summarise
from scalescope.analysis.statistics import difference_of_means
from scalescope.experiment.expand import expand
from scalescope.experiment.given import Given
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import load_run
from scalescope.results.run_folder import EXPERIMENT, RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.plan import Plan
from scalescope.studies.request import Request

SETTINGS = {
    "world_size": "2",
    "hidden_dim": "256",
    "input_dim": "256",
    "num_layers": "4",
    "batch_size": "64",
    "steps_per_epoch": "60",
}
GROUP = 10


def log_rates(launches: int, *, fresh: bool) -> list[float]:
    """ln(samples per second) of identical launches, in the order in which they ran."""
    flags = {name: (Given(value, name),) for name, value in SETTINGS.items()}
    launcher = LocalLauncher(fork=not fresh)
    try:
        with tempfile.TemporaryDirectory() as directory:
            request = Request(verb="train", flags=flags)
            machine = launcher.machine()
            expansion = expand(request.experiment({"repeats": launches}), machine)
            plan = Plan(experiment=expansion.experiment, trials=expansion.trials, machine=machine)
            folder = RunFolder.open(Path(directory) / "run", resume=False)
            folder.write(EXPERIMENT, "# made by a benchmark\n")
            run_campaign(plan, launcher, folder, NullWatcher())  # type: ignore[arg-type]
            folder.close()
            results = load_run(folder.path).of_status("ok")
    finally:
        launcher.close()
    assert len(results) == launches, f"only {len(results)} of {launches} launches were ok"
    return [summarise(result).log_rate for result in sorted(results, key=lambda result: result.order)]


def false_alarms(group: list[float]) -> float:
    """Share of all splits of a group into halves that Welch's interval calls different."""
    alarms = []
    for left in combinations(range(len(group)), len(group) // 2):
        if 0 not in left:  # each split once, not also mirrored
            continue
        first = [group[n] for n in left]
        second = [value for n, value in enumerate(group) if n not in left]
        difference = difference_of_means(first, second)
        assert difference.low is not None and difference.high is not None
        alarms.append(difference.low * difference.high > 0)
    return statistics.fmean(alarms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--fresh", action="store_true", help="start every rank as a new process")
    arguments = parser.parse_args()
    begin = time.monotonic()
    rates = log_rates(arguments.groups * GROUP, fresh=arguments.fresh)
    seconds = time.monotonic() - begin
    groups = [rates[n : n + GROUP] for n in range(0, len(rates), GROUP)]
    alarms = [false_alarms(group) for group in groups]
    share = statistics.fmean(alarms)
    half = 1.96 * statistics.stdev(alarms) / math.sqrt(len(alarms))
    spread = statistics.median(statistics.stdev(group) for group in groups)
    kind = "fresh" if arguments.fresh else "forked"
    print(f"{len(rates)} {kind} launches in {seconds:.0f} s, {seconds / len(rates):.2f} s each")
    print(f"spread within a group (median standard deviation of log rates): {spread:.2%}")
    print(f"false alarms at a nominal 5 %: {share:.1%} ± {half:.1%} over {len(groups)} groups")


if __name__ == "__main__":
    main()
