"""Whether the gate of `compare` is right: identical runs compared many times, and a delay injected.

    python benchmarks/compare_aa.py [--pairs 20] [--launches 5] [--delays 3] [--delay-launches 10]

Both runs of a pair are measured in turns, launch by launch, so that machine load affects both; then the
command compares the two folders, as if they were runs of different hours (benchmarks/aa_runs.py makes those).
A regression between identical runs is a false alarm: at most three of twenty are allowed. With a delay of 8 %
in every step of the new run the command must end with exit code 8, if the launches could detect 6 %. Ranks
sleep instead of computing, unless --computing, and in long steps, so that other load on the machine matters
less.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from aa import PACED, SMALL, THRESHOLD, interval, plan_of, steps_for
from null_watcher import NullWatcher

from scalescope.experiment.trial import Trial
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.files import to_text
from scalescope.results.provenance import describe_environment
from scalescope.results.run_folder import ENVIRONMENT, EXPERIMENT, RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.plan import Launch, Plan
from scalescope.version import __version__

LONG_STEPS = {**PACED, "forward_ms": 15, "backward_ms": 30}
MOST_FALSE_ALARMS = 0.15  # of all pairs
GATE_MISSED = 8


class Delayed:
    """A launcher that delays every step; the stored trial does not show it."""

    def __init__(self, launcher: LocalLauncher, delay_ms: float) -> None:
        self._launcher = launcher
        self._delay_ms = delay_ms

    def launch(self, trial: Trial, *rest: Any, **named: Any) -> Any:
        return self._launcher.launch(trial.replace(delay_ms=self._delay_ms), *rest, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)


def measure(launchers: dict[str, Any], plan: Plan, launches: int, root: Path) -> None:
    """One run folder per launcher; their launches alternate, and so does which comes first."""
    (trial,) = plan.trials
    folders = {name: RunFolder.open(root / name, resume=False) for name in launchers}
    for folder in folders.values():
        folder.write(EXPERIMENT, "# made by a benchmark\n")
        folder.write(ENVIRONMENT, to_text(describe_environment(plan.machine, __version__)))
    for launch in range(launches):
        names = list(folders) if launch % 2 else list(reversed(folders))
        for name in names:
            launch_plan = dataclasses.replace(plan, chosen=(Launch(trial, launch),))
            run_campaign(launch_plan, launchers[name], folders[name], NullWatcher())  # type: ignore[arg-type]
    for folder in folders.values():
        folder.close()


def compare(root: Path) -> tuple[int, dict[str, Any]]:
    """The exit code of the command, and its comparison of the configuration."""
    command = [sys.executable, "-m", "scalescope", "compare", str(root / "base"), str(root / "new")]
    wanted = ["--threshold", f"{THRESHOLD:.0%}", "--json", str(root / "compared.json")]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True)
    if done.returncode not in (0, GATE_MISSED):
        raise SystemExit(f"compare ended with {done.returncode}: {done.stderr}")
    (trial,) = json.loads((root / "compared.json").read_text())["trials"]
    return done.returncode, trial


def pairs(
    launchers: dict[str, Any], plan: Plan, count: int, launches: int
) -> list[tuple[int, dict[str, Any]]]:
    outcomes = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as directory:
            measure(launchers, plan, launches, Path(directory))
            outcomes.append(compare(Path(directory)))
    return outcomes


def print_outcomes(name: str, outcomes: list[tuple[int, dict[str, Any]]]) -> int:
    """Print the outcomes; returns how many missed the gate."""
    if not outcomes:
        return 0
    missed = sum(code == GATE_MISSED for code, _ in outcomes)
    verdicts = dict(Counter(trial["verdict"] for _, trial in outcomes))
    launches = outcomes[0][1]["base_launches"]
    print(f"{name}, {len(outcomes)} pairs of {launches} launches per side:")
    print(f"  exit code 8 {missed} times {interval(missed, len(outcomes))}, {verdicts}")
    for label in ("change", "smallest_effect_seen"):
        figures = sorted(trial[label] for _, trial in outcomes)
        print(f"  {label}: {', '.join(f'{figure:+.1%}' for figure in figures)}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--delays", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.08)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument(
        "--delay-launches", type=int, default=10, help="more launches, since noise hides a delay"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a launch's window")
    parser.add_argument("--computing", action="store_true", help="ranks that compute instead of sleeping")
    asked = parser.parse_args()
    job: dict[str, object] = dict(SMALL if asked.computing else LONG_STEPS)
    launcher = LocalLauncher()
    try:
        steps, step_s = steps_for(launcher, job, asked.seconds)
        plan = plan_of(launcher, {**job, "steps_per_epoch": steps})
        print(f"{steps} steps of {step_s * 1e3:.2f} ms per launch")
        same = pairs({"base": launcher, "new": launcher}, plan, asked.pairs, asked.launches)
        alarms = print_outcomes("identical", same)
        late = Delayed(launcher, asked.delay * step_s * 1e3)
        delayed = pairs({"base": launcher, "new": late}, plan, asked.delays, asked.delay_launches)
        caught = print_outcomes(f"{asked.delay:.0%} delay", delayed)
    finally:
        launcher.close()
    sharp = [code for code, trial in delayed if trial["smallest_effect_seen"] <= asked.delay * 0.75]
    ok = alarms <= MOST_FALSE_ALARMS * asked.pairs and all(code == GATE_MISSED for code in sharp)
    print(f"{alarms} of {asked.pairs} false alarms; {caught} of {asked.delays} delays detected")
    sys.exit(0 if ok and caught else 1)


if __name__ == "__main__":
    main()
