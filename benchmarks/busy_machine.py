"""Whether intervals hold the truth on a machine that others use too: scale, compare and tune, simulated.

    python benchmarks/busy_machine.py [--runs 1000] [--verbs scale,compare,tune] [--loads quiet,bursts]

The machine is simulated step by step: cores are shared in proportion by ranks and by what others run, ranks
wait for the slowest, and the load is constant, comes and goes, drifts, or starts in the middle. It hits many
ranks harder than one. The real campaign decides on launches, repeats and what is left out; the real analysis
makes the interval. The truth of an answer is the ratio under the load that its launches met, from long
simulations under constant load. Every figure is printed with the width of an oracle: Welch's interval of the
launches that others did not touch, or of all where they always did.
"""

import argparse
import functools
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from from_tests import TWO_CORES, CostModel, FakeLauncher
from null_watcher import NullWatcher

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.analysis.statistics import Estimate, ratio_of_logs
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import RankRecord
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.comparison.interleave import Turns
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import host_of, prepare
from scalescope.studies.request import Request
from scalescope.studies.scaling.scale import ScaleStudy
from scalescope.studies.tuning.tune import TuneStudy

CORES = 2
_STEP_S, _EXCHANGE_S = 0.1, 0.012  # of one rank's compute; of two ranks' exchange
_STEP_NOISE, _LAUNCH_NOISE = 0.03, 0.012
_START_S, _WINDOW_S = 3.0, 2.0
_LEVER_GAIN = 1.10  # of compiling, on this machine
_OTHER_SIDE = 1.05  # of the new side of a comparison
LOADS = ("quiet", "constant", "bursts", "drift", "starts")
VERBS = ("scale", "compare", "tune")


@dataclass
class Machine:
    """Two cores, a clock, and others that want `load(time)` cores."""

    kind: str
    chance: random.Random
    length_s: float
    now: float = 0.0
    edges: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        time, wanted = 0.0, 0.0
        self._bursts: list[tuple[float, float]] = [(0.0, 0.0)]
        while time < 20.0 * self.length_s:
            time += self.chance.expovariate(1.0 / (40.0 if wanted == 0.0 else 20.0))
            wanted = 0.0 if wanted else self.chance.choice((1.0, 2.0, 4.0))
            self._bursts.append((time, wanted))
        self._begins = self.chance.uniform(0.2, 0.8) * self.length_s

    def load(self, time: float) -> float:
        """Cores that others want."""
        if self.kind == "quiet":
            return 0.0
        if self.kind == "constant":
            return 2.0
        if self.kind == "starts":
            return 3.0 if time >= self._begins else 0.0
        if self.kind == "drift":
            return min(3.0, 3.0 * time / self.length_s)
        return next(wanted for begin, wanted in reversed(self._bursts) if begin <= time)

    def launch(self, ranks: int, compute_s: float) -> tuple[list[list[float]], OtherLoad, float]:
        """Steps of each rank, what a sampler would have seen, and the mean load during the window."""
        self.now += _START_S
        pace = math.exp(self.chance.gauss(0.0, _LAUNCH_NOISE))
        begin, steps, wanted, waited, used = self.now, [], 0.0, 0.0, 0.0
        while self.now - begin < _WINDOW_S or len(steps) < 5:
            others = self.load(self.now)
            share = min(1.0, CORES / (ranks + others))
            work = [compute_s * pace * math.exp(self.chance.gauss(0.0, _STEP_NOISE)) for _ in range(ranks)]
            step_s = max(work) / share + (_EXCHANGE_S if ranks > 1 else 0.0)
            steps.append(step_s)
            wanted, waited = wanted + others * step_s, waited + (1.0 - share) * step_s
            used += min(others, CORES - ranks * share if ranks + others <= CORES else others * share) * step_s
            self.now += step_s
        window_s = self.now - begin
        load = OtherLoad(
            cores=CORES,
            other_cores=max(0.0, used / window_s + self.chance.gauss(0.05, 0.03)),
            stolen_cores=0.0,
            rank_waits=(max(0.0, waited / window_s + abs(self.chance.gauss(0.0, 0.005))),) * ranks,
        )
        return [steps] * ranks, load, wanted / window_s


@functools.cache
def log_rate(load: float, ranks: int, compute_s: float) -> float:
    """The truth: the logarithm of steps per second under a constant load, from a long simulation."""
    total = []
    for seed in range(60):
        machine = Machine("constant", random.Random(f"truth/{seed}"), 10.0)
        machine.load = lambda time: load  # type: ignore[method-assign]
        (steps, *_), _, _ = machine.launch(ranks, compute_s)
        total.append(-math.log(statistics.fmean(steps)))
    return statistics.fmean(total)


def true_log_rate(load: float, ranks: int, compute_s: float) -> float:
    """Between loads that were simulated, on a straight line."""
    below = min(4.0, math.floor(load * 4.0) / 4.0)
    share = min(1.0, max(0.0, (load - below) * 4.0))
    near, far = (log_rate(at, ranks, compute_s) for at in (below, min(4.25, below + 0.25)))
    return near + share * (far - near)


class BusyLauncher(FakeLauncher):
    """Launches on such a machine; remembers the load that each launch met, by its steps."""

    def __init__(self, machine: Machine, compute_s: Callable[[Trial], float]) -> None:
        super().__init__(CostModel(), TWO_CORES)
        self.busy, self.compute_s, self.met = machine, compute_s, {}

    def launch(self, trial: Trial, launch: int, folder: object, *others: object, **named: object) -> Outcome:
        steps, load, wanted = self.busy.launch(trial.world_size, self.compute_s(trial))
        self.met[steps[0][0]] = (wanted, trial.world_size, self.compute_s(trial))
        records = [
            RankRecord(
                rank=rank,
                host="simulated",
                device="cpu",
                placement="simulated",
                samples={"step_time_s": times, "loss": [1.0] * len(times)},
                counters={"parameter_checksum": "0"},
            )
            for rank, times in enumerate(steps)
        ]
        return Outcome(status="ok", records=records, telemetry={"load": load.to_json()})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one run said of ln(ratio), and what was true of it; None is unknown."""

    low: float | None
    high: float | None
    value: float | None
    truth: float
    oracle_width: float


def truth_of(launcher: BusyLauncher, sides: Sequence[Configuration]) -> float:
    """The mean difference of true logarithms under the loads that the counted launches of the first met."""
    met = [[launcher.met[launch.step_times_s[0]] for launch in side.launches] for side in sides]
    (_, *new), (_, *old) = (of_side[0] for of_side in met)
    return statistics.fmean(true_log_rate(load, *new) - true_log_rate(load, *old) for load, *_ in met[0])


def oracle_width(launcher: BusyLauncher, run: Run, sides: Sequence[Trial]) -> float:
    """Of an analysis that knows which launches others touched."""
    logs: list[list[float]] = []
    for trial in sides:
        members = [r for r in (*run.results, *run.replaced) if r.trial_id == trial.trial_id]
        steps = [member.ranks[0].samples["step_time_s"] for member in members]
        free = [s for s in steps if launcher.met[s[0]][0] < 0.02]
        same = free if len(free) > 1 else steps
        logs.append([-math.log(statistics.fmean(s)) for s in same])
    return width(ratio_of_logs(logs[0], logs[1]))


def width(ratio: Estimate) -> float:
    return math.nan if ratio.low is None or ratio.high is None else math.log(ratio.high / ratio.low)


def answer(
    launcher: BusyLauncher, run: Run, sides: Sequence[Configuration], ratio: Estimate | None, extra: float
) -> Answer:
    known = ratio is not None and ratio.low is not None and ratio.high is not None and ratio.low > 0.0
    return Answer(
        low=math.log(ratio.low) if known else None,
        high=math.log(ratio.high) if known else None,
        value=math.log(ratio.value) if known else None,
        truth=truth_of(launcher, sides) + extra if sides else math.nan,
        oracle_width=oracle_width(launcher, run, [side.trial for side in sides]) if sides else math.nan,
    )


def planned(study: ScaleStudy | TuneStudy, launcher: BusyLauncher, **flags: str) -> Plan:
    from tests.builders.requests import flags as entries

    request = Request(verb=study.verb, flags=entries(**flags))
    return prepare(study, request).on(host_of(launcher)).plan


def scale(machine: Machine, folder: RunFolder) -> Answer:
    launcher = BusyLauncher(machine, lambda trial: _STEP_S)
    plan = planned(ScaleStudy(waterfall=False), launcher, world_size="1,2", batch_size="32")
    run_campaign(plan, launcher, folder, NullWatcher())
    run = load_run(folder.path)
    known = configurations(run.results)
    one = next(c for c in known if c.trial.world_size == 1 and not c.trial.is_wrapped)
    two = next(c for c in known if c.trial.world_size == 2)
    row = next((row for row in scaling_rows(known) if row.ranks == 2), None)
    return answer(launcher, run, (two, one), None if row is None else row.speedup, math.log(2.0))


def compare(machine: Machine, folder: RunFolder) -> Answer:
    def compute_s(trial: Trial) -> float:
        return _STEP_S / (_OTHER_SIDE if trial.given_batch_size == 33 else 1.0)

    launcher = BusyLauncher(machine, compute_s)
    plan = planned(ScaleStudy(waterfall=False), launcher, world_size="2", batch_size="32,33")
    old, new = sorted((t for t in plan.trials if t.world_size == 2), key=lambda t: t.given_batch_size)
    plan = Plan(experiment=plan.experiment, trials=(old, new), machine=plan.machine, chosen=())
    turns = Turns([(old, new)], 0.03, 0)
    rounds = 6

    class Some(Turns):
        def next_launches(self, run: Run, remaining_s: float | None) -> object:
            made = sum(result.trial_id == old.trial_id for result in run.results)
            return turns.next_launches(run, remaining_s) if made < rounds else ()

    run_campaign(plan, launcher, folder, NullWatcher(), Some([(old, new)], 0.03, 0))
    run = load_run(folder.path)
    (judged,) = turns.comparison(run).judged or (None,)
    extra = math.log(33 / 32)
    if judged is None:
        return answer(launcher, run, (), None, extra)
    return answer(launcher, run, (judged.after, judged.before), judged.speedup, extra)


def tune(machine: Machine, folder: RunFolder) -> Answer:
    def compute_s(trial: Trial) -> float:
        return _STEP_S / (_LEVER_GAIN if trial.settings.get("compile") == "default" else 1.0)

    launcher = BusyLauncher(machine, compute_s)
    study = TuneStudy(levers=("compile=default",))
    plan = planned(study, launcher, world_size="2", batch_size="32", budget="600s")
    run_campaign(plan, launcher, folder, NullWatcher(), study)
    run = load_run(folder.path)
    tuning = study._planned(run).read(run)
    known = {c.trial.trial_id: c for c in configurations(run.results)}
    fused = next((c for c in known.values() if c.trial.settings.get("compile") == "default"), None)
    base = known.get(tuning.baseline.trial_id)
    tried = next((t for t in tuning.combinations if t.levers), None)
    if fused is None or base is None or tried is None:
        return answer(launcher, run, (), None, 0.0)
    return answer(launcher, run, (fused, base), tried.speedup, 0.0)


def one_run(verb: str, kind: str, seed: int) -> Answer:
    folder_path = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    folder = RunFolder.open(folder_path / "run", resume=False)
    (folder.path / "experiment.yaml").write_text("")
    try:
        length_s = {"scale": 50.0, "compare": 60.0, "tune": 100.0}[verb]
        machine = Machine(kind, random.Random(f"{verb}/{kind}/{seed}"), length_s)
        return {"scale": scale, "compare": compare, "tune": tune}[verb](machine, folder)
    finally:
        folder.close()
        shutil.rmtree(folder_path)


def summary(answers: Sequence[Answer]) -> dict[str, float]:
    known = [a for a in answers if a.low is not None and not math.isnan(a.truth)]
    held = sum(a.low <= a.truth <= a.high for a in known)  # type: ignore[operator]
    wrong = sum(a.low > 0.0 > a.truth or a.high < 0.0 < a.truth for a in known)  # type: ignore[operator]
    widths = [a.high - a.low for a in known]  # type: ignore[operator]
    oracles = [a.oracle_width for a in known if not math.isnan(a.oracle_width)]
    return {
        "runs": len(answers),
        "covered": held / max(1, len(known)),
        "wrong sign": wrong / max(1, len(known)),
        "unknown": 1.0 - len(known) / len(answers),
        "mean width": statistics.fmean(widths) if widths else math.nan,
        "oracle width": statistics.fmean(oracles) if oracles else math.nan,
        "bias": statistics.fmean(a.value - a.truth for a in known) if known else math.nan,  # type: ignore[operator]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    print(
        f"{'verb':8} {'load':9} {'covered':>8} {'sign':>6} {'unknown':>8} {'width':>6} "
        f"{'oracle':>7} {'bias':>7}"
    )
    with ProcessPoolExecutor(given.processes) as pool:
        for verb in given.verbs.split(","):
            for kind in given.loads.split(","):
                calls = [pool.submit(one_run, verb, kind, seed) for seed in range(given.runs)]
                found = summary([call.result() for call in calls])
                print(
                    f"{verb:8} {kind:9} {found['covered']:8.1%} {found['wrong sign']:6.1%} "
                    f"{found['unknown']:8.1%} {found['mean width']:6.3f} {found['oracle width']:7.3f} "
                    f"{found['bias']:+7.3f}",
                    flush=True,
                )
                print(json.dumps({"verb": verb, "load": kind, **found}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
