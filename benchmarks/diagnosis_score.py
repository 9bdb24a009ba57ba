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


class Silence:
    """A watcher that says nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: None


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


def all_cases() -> list[Case]:
    """Every cause at every strength."""
    found = [
        Case(
            HEALTHY,
            f"{forward}+{backward} ms",
            {**PACED, "forward_ms": forward, "backward_ms": backward, "layer_mb": 0.02},
            (),
        )
        for forward, backward in (
            (20, 40),
            (15, 30),
            (30, 30),
            (25, 50),
            (40, 60),
            (20, 60),
            (10, 50),
            (50, 50),
            (35, 45),
            (60, 60),
            (18, 36),
            (45, 20),
        )
    ]
    for rate in ("50mbit", "100mbit", "200mbit"):
        for size in (0.5, 1.0, 2.0):
            settings = {
                **PACED,
                "forward_ms": 10,
                "backward_ms": 20,
                "layer_mb": size / 8,
                "link": rate,
                "steps_per_epoch": 15,
            }
            found.append(Case("slow link", f"{rate}, {size} MB", settings, BANDWIDTH))
    busy = {**PACED, "forward_ms": 15, "backward_ms": 30, "layer_mb": 0.02}
    found += [Case("slow rank", f"{ms} ms", busy, LATE, f"slow:{ms}@1:0") for ms in (6, 10, 15, 20, 30, 45)]
    found += [Case("jitter", f"±{ms} ms", busy, SKEW, f"jitter:{ms}@all:0") for ms in (10, 15, 20, 30, 40)]
    found += [Case("hiccup", f"{ms} ms", busy, SKEW, f"hiccup:{ms}@1:0") for ms in (80, 120, 200, 300)]
    found += [
        Case(
            "slow loader",
            f"{s * 1e3:g} ms a sample",
            {"steps_per_epoch": 20, "batch_size": 16},
            ("input-bound",),
            slow_data_s=s,
        )
        for s in (0.0005, 0.001, 0.002, 0.004)
    ]
    found += [
        Case("tiny batch", f"{batch}", {**REAL, "batch_size": batch}, LITTLE_WORK)
        for batch in (1, 2, 4, 8, 16)
    ]
    found += [
        Case(
            "tiny model",
            f"{width} wide",
            {**REAL, "hidden_dim": width, "input_dim": width, "output_dim": width, "batch_size": 32},
            LITTLE_WORK,
        )
        for width in (16, 32, 64, 128)
    ]
    found += [
        Case(
            "too many threads",
            f"{threads}",
            {**REAL, "threads_per_rank": threads, "batch_size": 128},
            ("too many CPU threads",),
        )
        for threads in (2, 3, 4, 8)
    ]
    tiny = {**PACED, "forward_ms": 5, "backward_ms": 10, "layers": 200, "layer_mb": 0.02}
    found += [
        Case(
            "tiny buckets",
            f"{cap} MB",
            {**tiny, "bucket_cap_mb": cap},
            ("buckets too small", "communication-bound by latency"),
        )
        for cap in (0.001, 0.01, 0.02)
    ]
    return found


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
