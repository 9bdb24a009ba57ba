"""Whether the diagnosis is right: causes injected at several strengths, the chain run blind, and a table.

    python benchmarks/diagnosis_score.py [--cases 60] [--only NAME] [--repeats 3] [--json FILE]

Two gloo ranks on the CPU; links need Linux and root. Every case is what `scalescope scale` does with a
request; what is injected is a setting (a shaped link, a tiny batch, tiny buckets, many threads), a fault in
a rank (slow, jitter, hiccup) or a data set that takes its time. A healthy case is right when no finding costs
more than 5 %.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from quiet import Silence

from scalescope.diagnose.diagnosis import diagnose
from scalescope.experiment.yaml_file import Given
from scalescope.launch.local import LocalLauncher
from scalescope.studies.request import Request
from scalescope.studies.scale import scale

HEALTHY = "healthy"
_MATTERS = 0.05
PACED = {"workload": "paced", "steps_per_epoch": 30, "layers": 8}
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
    slow_data_s: float | None = field(default=None)


BANDWIDTH = ("communication-bound by bandwidth",)
LATE = ("straggling rank",)
SKEW = ("random skew between ranks", "straggling rank")
LITTLE_WORK = ("too little work for every exchange", "communication-bound by latency")


# Forward and backward pass in ms.
PACES = ((20, 40), (15, 30), (30, 30), (25, 50), (40, 60), (20, 60), (10, 50), (50, 50), (35, 45), (60, 60))
PACES += ((18, 36), (45, 20))


def paced(forward_ms: float, backward_ms: float, layer_mb: float, **more: object) -> dict[str, object]:
    """Ranks that sleep so long and exchange so much."""
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
    """One rank, or each now and then, takes longer."""
    busy = paced(15, 30, 0.02)
    return [
        *(Case("slow rank", f"{ms} ms", busy, LATE, f"slow:{ms}@1:0") for ms in (6, 10, 15, 20, 30, 45)),
        *(Case("jitter", f"±{ms} ms", busy, SKEW, f"jitter:{ms}@all:0") for ms in (10, 15, 20, 30, 40)),
        *(Case("hiccup", f"{ms} ms", busy, SKEW, f"hiccup:{ms}@1:0") for ms in (80, 120, 200, 300)),
    ]


def cases_of_the_job() -> list[Case]:
    """Samples that take their time, and work too little for its gradients."""
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
            LITTLE_WORK,
        )
        for width in (16, 32, 64, 128)
    ]
    return [*loaders, *batches, *models]


WIDTHS = ("hidden_dim", "input_dim", "output_dim")


def cases_of_settings() -> list[Case]:
    """Too many threads, and buckets far too small."""
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
    ]


def run_case(case: Case, launcher: LocalLauncher, repeats: int, directory: Path) -> list[tuple[str, float]]:
    """The findings of a case, the most expensive first."""
    settings = dict(case.settings)
    if case.slow_data_s is not None:
        file = directory / "slow_data.py"
        file.write_text(SLOW_DATA.format(sleep_s=case.slow_data_s))
        settings["workload"] = f"{file}:build"
    asked = {"world_size": "1,2", "repeats": repeats, "output_dir": directory / "run", **settings}
    flags = {
        name: tuple(Given(text, name) for text in str(value).split(",")) for name, value in asked.items()
    }
    os.environ.pop("SCALESCOPE_FAULT", None)
    if case.fault is not None:
        os.environ["SCALESCOPE_FAULT"] = case.fault
    try:
        report = scale(Request(verb="scale", flags=flags), launcher, Silence())  # type: ignore[arg-type]
    finally:
        os.environ.pop("SCALESCOPE_FAULT", None)
    assert report.run is not None
    return [(one.rule, one.share) for one in diagnose(report.run).findings if one.share > 0.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="at most so many, spread over the causes")
    parser.add_argument("--only", help="a cause")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cases = [one for one in all_cases() if asked.only in (None, one.name)]
    cases = cases[:: max(1, -(-len(cases) // asked.cases))]
    outcomes: list[dict[str, object]] = []
    confusion: Counter[tuple[str, str]] = Counter()
    started = time.monotonic()
    for case in cases:
        launcher = LocalLauncher()  # faults travel in the environment of the zygote
        try:
            with tempfile.TemporaryDirectory() as directory:
                found = run_case(case, launcher, asked.repeats, Path(directory))
        finally:
            launcher.close()
        top = found[0][0] if found and (case.name != HEALTHY or found[0][1] > _MATTERS) else HEALTHY
        right = top in case.expected if case.expected else top == HEALTHY
        confusion[case.name, top] += 1
        outcomes.append(
            {"cause": case.name, "strength": case.strength, "top": top, "right": right, "found": found}
        )
        costs = ", ".join(f"{rule} {share:.2f}" for rule, share in found[:3])
        print(f"{'ok' if right else 'NO'}  {case.name} {case.strength}: {top} ({costs})", flush=True)
    right_ones = sum(bool(one["right"]) for one in outcomes)
    print(f"\n{right_ones} of {len(outcomes)} right, {time.monotonic() - started:.0f} s")
    for (cause, top), count in sorted(confusion.items()):
        print(f"  {cause:<18} → {top:<38} {count}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
