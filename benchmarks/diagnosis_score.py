"""Whether the diagnosis is right: causes injected at several strengths, diagnosed blind, and a table.

    python benchmarks/diagnosis_score.py [--only NAME] [--repeats 4] [--keep DIR] [--again DIR]

Two gloo ranks on the CPU; links need Linux and root. Every case is what `scalescope scale` does with a
request; the injected cause is a setting (a shaped link, a tiny batch, tiny buckets, many threads), a fault in
a rank (slow, jitter, hiccup) or a slow data set. A healthy case is right if no finding costs more than 5 %.
Cases run in random order, so that temporary load on the machine does not affect a single cause. `--keep`
stores the runs, `--again` diagnoses stored runs.
"""

import argparse
import contextlib
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from null_watcher import NullWatcher

from scalescope.diagnose.diagnosis import diagnose
from scalescope.experiment.given import Given
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import Run, load_run
from scalescope.studies.execution import run_study
from scalescope.studies.request import Request
from scalescope.studies.scaling.scale import ScaleStudy

HEALTHY = "healthy"
_MATTERS = 0.05
PACED = {"workload": "paced", "batch_size": 32, "steps_per_epoch": 24, "layers": 8}
REAL = {"steps_per_epoch": 30}
SLOW_DATA = """
import time
import torch
from torch import nn

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, number):
        time.sleep({sleep_s})
        return torch.ones(64), torch.zeros(8)

def build():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)), Slow(), nn.functional.mse_loss
"""


@dataclass(frozen=True)
class Case:
    """A cause with its strength, and the findings that name it."""

    name: str
    strength: str
    settings: dict[str, object]
    expected: tuple[str, ...]
    fault: str | None = None
    slow_data_s: float | None = None

    @property
    def folder(self) -> str:
        """Where its run is kept."""
        return "".join(letter if letter.isalnum() else "_" for letter in f"{self.name} {self.strength}")


BANDWIDTH = ("communication-bound by bandwidth",)
LATE = ("straggling rank",)
SKEW = ("random skew between ranks", "straggling rank")
LAST = ("last bucket too large",)
LITTLE_WORK = ("too little work for every exchange", "communication-bound by latency")


# Forward and backward pass in ms: long enough that one gloo all-reduce, 2 to 4 ms on a busy machine with two
# cores, is not a finding. With 45 ms per step it is one.
PACES = ((40, 60), (50, 50), (60, 60), (35, 70), (45, 60), (30, 80), (50, 70), (40, 80), (70, 50), (60, 80))
PACES += ((55, 65), (45, 75))


def paced(forward_ms: float, backward_ms: float, layer_mb: float, **more: object) -> dict[str, object]:
    """Ranks that sleep for these times and all-reduce this much."""
    return {**PACED, "forward_ms": forward_ms, "backward_ms": backward_ms, "layer_mb": layer_mb, **more}


def all_cases() -> list[Case]:
    """Every cause at every strength."""
    return [*healthy_cases(), *cases_of_links(), *cases_of_ranks(), *cases_of_the_job(), *cases_of_settings()]


def healthy_cases() -> list[Case]:
    return [
        Case(HEALTHY, f"{forward}+{backward} ms", paced(forward, backward, 0.02), ())
        for forward, backward in PACES
    ]


def cases_of_links() -> list[Case]:
    return [
        Case(
            "slow link",
            f"{rate}, {size} MB",
            paced(10, 20, size / 8, link=rate, steps_per_epoch=15),
            BANDWIDTH,
        )
        for rate in ("50mbit", "100mbit", "200mbit")
        for size in (0.5, 1.0, 2.0)
    ]


def cases_of_ranks() -> list[Case]:
    """One rank is slow, or each at random."""
    busy = paced(15, 30, 0.02)
    return [
        *(Case("slow rank", f"{ms} ms", busy, LATE, f"slow:{ms}@1:0") for ms in (6, 10, 15, 20, 30, 45)),
        *(Case("jitter", f"±{ms} ms", busy, SKEW, f"jitter:{ms}@all:0") for ms in (10, 15, 20, 30, 40)),
        *(Case("hiccup", f"{ms} ms", busy, SKEW, f"hiccup:{ms}@1:0") for ms in (80, 120, 200, 300)),
    ]


def cases_of_the_job() -> list[Case]:
    """Slow samples, and too little work for the size of the gradients."""
    fed = {"steps_per_epoch": 20, "batch_size": 16}
    sleeps = (0.0005, 0.001, 0.002, 0.004)
    loaders = [Case("slow loader", f"{s * 1e3:g} ms", fed, ("input-bound",), slow_data_s=s) for s in sleeps]
    batches = [
        Case("tiny batch", f"{batch}", {**REAL, "batch_size": batch}, LITTLE_WORK)
        for batch in (1, 2, 4, 8, 16)
    ]
    models = [
        Case(
            "tiny model",
            f"{width} wide",
            {**REAL, **dict.fromkeys(WIDTHS, width), "batch_size": 32},
            ("model too small for several ranks", *LITTLE_WORK),
        )
        for width in (16, 32, 64, 128)
    ]
    return [*loaders, *batches, *models]


WIDTHS = ("hidden_dim", "input_dim", "output_dim")


def cases_of_settings() -> list[Case]:
    """Too many threads, buckets far too small, and one gradient that is large and comes last."""
    busy = {**REAL, "batch_size": 128}
    crowded = ("too many CPU threads",)
    tiny = paced(5, 10, 0.02, layers=200)
    small = ("buckets too small", "communication-bound by latency")
    return [
        *(Case("too many threads", f"{n}", {**busy, "threads_per_rank": n}, crowded) for n in (2, 3, 4, 8)),
        *(
            Case("tiny buckets", f"{cap} MB", {**tiny, "bucket_cap_mb": cap}, small)
            for cap in (0.001, 0.01, 0.02)
        ),
        *(
            Case("giant last parameter", f"{size} MB", paced(20, 40, 1.0, first_layer_mb=size), LAST)
            for size in (16, 32, 48, 64, 96)
        ),
    ]


def measured(case: Case, repeats: int, directory: Path) -> Run:
    """The run of a case, measured as `scalescope scale` would."""
    settings = dict(case.settings)
    if case.slow_data_s is not None:
        file = directory / "slow_data.py"
        file.write_text(SLOW_DATA.format(sleep_s=case.slow_data_s))
        settings["workload"] = f"{file}:build"
    asked = {"world_size": "1,2", "repeats": repeats, "output_dir": directory / case.folder, **settings}
    flags = {
        name: tuple(Given(text, name) for text in str(value).split(",")) for name, value in asked.items()
    }
    with injected(case.fault) as launcher:
        request = Request(verb="scale", flags=flags)
        report = run_study(ScaleStudy(), request, launcher, NullWatcher())  # type: ignore[arg-type]
    assert report.run is not None
    return report.run


@contextlib.contextmanager
def injected(fault: str | None) -> Iterator[LocalLauncher]:
    """A launcher whose ranks have the fault, through the environment of the zygote."""
    os.environ.pop("SCALESCOPE_FAULT", None)
    if fault is not None:
        os.environ["SCALESCOPE_FAULT"] = fault
    launcher = LocalLauncher()
    try:
        yield launcher
    finally:
        launcher.close()
        os.environ.pop("SCALESCOPE_FAULT", None)


@dataclass(frozen=True)
class Verdict:
    """The first finding of the diagnosis, and whether it names the cause."""

    case: Case
    top: str
    right: bool


def judge(case: Case, run: Run) -> Verdict:
    """Blind: the first finding that costs more than 5 %, or none."""
    shares = [(finding.rule, finding.share) for finding in diagnose(run).findings if finding.share > 0.0]
    top = shares[0][0] if shares and shares[0][1] > _MATTERS else HEALTHY
    right = top in (case.expected or (HEALTHY,))
    costs = ", ".join(f"{rule} {share:.2f}" for rule, share in shares[:3])
    print(f"{'ok' if right else 'NO'}  {case.name} {case.strength}: {top} ({costs})", flush=True)
    return Verdict(case, top, right)


def show(verdicts: list[Verdict]) -> None:
    """The confusion matrix, and precision and recall of every cause."""
    right = sum(verdict.right for verdict in verdicts)
    healthy = [verdict for verdict in verdicts if verdict.case.name == HEALTHY]
    print(f"\n{right} of {len(verdicts)} right ({right / len(verdicts):.0%}); ", end="")
    print(f"false alarms: {sum(not verdict.right for verdict in healthy)} of {len(healthy)} healthy runs\n")
    confusion = Counter((verdict.case.name, verdict.top) for verdict in verdicts)
    for (cause, top), count in sorted(confusion.items()):
        print(f"| {cause} | {top} | {count} |")
    print("\n| cause | cases | recall | precision |\n|---|---|---|---|")
    for name in dict.fromkeys(verdict.case.name for verdict in verdicts):
        of_cause = [verdict for verdict in verdicts if verdict.case.name == name]
        names = of_cause[0].case.expected or (HEALTHY,)
        reported = [verdict for verdict in verdicts if verdict.top in names]
        fair = [verdict for verdict in reported if verdict.right]  # two causes may share a finding
        precision = f"{len(fair)} of {len(reported)}" if reported else "never reported"
        recall = f"{sum(verdict.right for verdict in of_cause)} of {len(of_cause)}"
        print(f"| {name} | {len(of_cause)} | {recall} | {precision} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="a cause")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--keep", type=Path, help="store the runs there")
    parser.add_argument("--again", type=Path, help="diagnose what --keep stored there; measures nothing")
    asked = parser.parse_args()
    cases = [case for case in all_cases() if asked.only in (None, case.name)]
    random.Random(asked.seed).shuffle(cases)
    started = time.monotonic()
    if asked.again is not None:
        kept = [case for case in cases if (asked.again / case.folder).is_dir()]
        if not kept:
            parser.error(f"{asked.again} holds no run of these cases")
        show([judge(case, load_run(asked.again / case.folder)) for case in kept])
        return
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
    verdicts = []
    for case in cases:
        with tempfile.TemporaryDirectory() as directory:
            verdicts.append(judge(case, measured(case, asked.repeats, asked.keep or Path(directory))))
    show(verdicts)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
