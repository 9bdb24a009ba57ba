"""Whether verdicts are right: identical configurations compared many times, and an injected delay detected.

    python benchmarks/aa.py [--runs 40] [--delays 10] [--delay 0.08] [--seconds 0.4] [--paced]

Every run alternates launches of two configurations and compares them. They differ by the learning rate, which
does not affect speed, or by a delay in every step. On
a noisy machine hardly any run can detect 5 %; with --paced the ranks sleep instead of computing, so that only
the noise of launching and communication is left, and a 5 % difference can be detected.
"""

import argparse
import dataclasses
import math
import tempfile
from collections import Counter
from pathlib import Path

from null_watcher import NullWatcher

from scalescope.analysis.configurations import configurations
from scalescope.analysis.verdicts import Judgement, judge_all
from scalescope.experiment.expand import expand
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import load_run
from scalescope.results.run_folder import RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.plan import Plan
from scalescope.studies.request import Request

SMALL = {"world_size": 2, "hidden_dim": 128, "input_dim": 128, "output_dim": 64, "batch_size": 64}
PACED = {
    "world_size": 2,
    "workload": "paced",
    "forward_ms": 4,
    "backward_ms": 8,
    "layers": 4,
    "layer_mb": 0.1,
}
THRESHOLD = 0.03
LAUNCHES = 5


def plan_of(launcher: LocalLauncher, settings: dict[str, object]) -> Plan:
    """One configuration, as a plan without launches."""
    asked = {name: (Given(str(value), name),) for name, value in settings.items()}
    request = Request(verb="tune", flags=asked)
    expansion = expand(request.experiment({"repeats": LAUNCHES}), launcher.machine())
    return Plan(
        experiment=expansion.experiment, trials=expansion.trials, machine=launcher.machine(), chosen=()
    )


def judge(launcher: LocalLauncher, plan: Plan, other: Trial, seed: int) -> Judgement:
    """Compare the plan's configuration with another one, in launches made in turns."""
    (baseline,) = plan.trials
    measuring = dataclasses.replace(plan.experiment.measuring, order_seed=seed)
    experiment = dataclasses.replace(plan.experiment, measuring=measuring)
    both = Plan(experiment=experiment, trials=(baseline, other), machine=plan.machine)
    with tempfile.TemporaryDirectory() as directory:
        folder = RunFolder.open(Path(directory) / "run", resume=False)
        (folder.path / "experiment.yaml").write_text("# made by a benchmark\n")
        run_campaign(both, launcher, folder, NullWatcher())  # type: ignore[arg-type]
        rates = {c.trial.trial_id: c.log_rates for c in configurations(load_run(folder.path).results)}
        folder.close()
    (judgement,) = judge_all([(rates[other.trial_id], rates[baseline.trial_id])], THRESHOLD)
    return judgement


def steps_for(launcher: LocalLauncher, settings: dict[str, object], seconds: float) -> tuple[int, float]:
    """How many steps fill a launch of that length, and the time of one step."""
    plan = plan_of(launcher, {**settings, "steps_per_epoch": 100})
    with tempfile.TemporaryDirectory() as directory:
        folder = RunFolder.open(Path(directory) / "run", resume=False)
        (folder.path / "experiment.yaml").write_text("# made by a benchmark\n")
        chosen = Plan(**{name: getattr(plan, name) for name in ("experiment", "trials", "machine")})
        run_campaign(chosen, launcher, folder, NullWatcher())  # type: ignore[arg-type]
        (configuration,) = configurations(load_run(folder.path).results)
        folder.close()
    step_s = configuration.step_time_s.value
    return max(20, int(seconds / step_s)), step_s


def interval(count: int, total: int) -> str:
    """Wilson's 95 % interval of a rate."""
    z, share = 1.96, count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return f"[{max(0.0, middle - half):.1%}, {middle + half:.1%}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--delays", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.08)
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a launch's window")
    parser.add_argument("--paced", action="store_true", help="ranks that sleep instead of computing")
    asked = parser.parse_args()
    job: dict[str, object] = dict(PACED if asked.paced else SMALL)
    launcher = LocalLauncher()
    try:
        steps, step_s = steps_for(launcher, job, asked.seconds)
        plan = plan_of(launcher, {**job, "steps_per_epoch": steps})
        (baseline,) = plan.trials
        print(f"{steps} steps of {step_s * 1e3:.2f} ms per launch, {LAUNCHES} launches each")
        same = [judge(launcher, plan, baseline.replace(lr=0.011), seed) for seed in range(asked.runs)]
        verdicts = Counter(comparison.verdict for comparison in same)
        alarms = verdicts["faster"] + verdicts["slower"]
        print(f"identical, {asked.runs} runs: {dict(verdicts)}")
        print(f"called different: {alarms} of {asked.runs} {interval(alarms, asked.runs)}")
        delay_ms = asked.delay * step_s * 1e3
        later = baseline.replace(delay_ms=delay_ms)
        delayed = [judge(launcher, plan, later, 1000 + seed) for seed in range(asked.delays)]
        sharp = [
            comparison
            for comparison in delayed
            if comparison.smallest_detectable is not None and comparison.smallest_detectable <= 0.05
        ]
        verdicts = Counter(comparison.verdict for comparison in delayed)
        print(f"{asked.delay:.0%} delay, {asked.delays} runs: {dict(verdicts)}")
        detected = sum(comparison.verdict == "slower" for comparison in sharp)
        effects = sorted(comparison.smallest_detectable or 0.0 for comparison in delayed)
        print(f"smallest detectable effect: {', '.join(f'{effect:.1%}' for effect in effects)}")
        print(f"able to detect 5 %: {len(sharp)}, of these slower: {detected}")
    finally:
        launcher.close()


if __name__ == "__main__":
    main()
