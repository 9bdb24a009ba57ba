"""One start of a command against a start for every phase: do the parts of the step agree?

    python benchmarks/one_start.py [--verb train|scale] [--jobs plain,gan] [--rounds 5] [--out FOLDER]

Every round measures each job of benchmarks/commands/jobs.py both ways, in random order. Prints for every part
of the step the mean difference (one start minus separate starts) in percent of the step, with its 95 %
interval over rounds; also how the step differs when it is timed again after the phases, and the time that
both ways took. `--separately ARGUMENTS` runs scalescope with a start for every phase. What is in `--out` is
not measured again.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.analysis.statistics import mean_with_interval
from scalescope.results.ranks import AGAIN

HERE = Path(__file__).resolve().parent
JOBS = HERE / "commands" / "jobs.py"
WAYS = ("one", "separate")
_SEPARATELY = "--separately"


def run_separately(arguments: list[str]) -> int:
    """scalescope without anything that follows on a window."""
    from scalescope.cli.main import main as command_line
    from scalescope.studies.plan import Plan

    Plan.phases_of = lambda self, launch: ()  # type: ignore[method-assign]
    sys.argv = ["scalescope", *arguments]
    return int(command_line() or 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verb", choices=("train", "scale"), default="train")
    parser.add_argument("--jobs", default="plain,accumulation,gan")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=3.0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "one_start")
    options = parser.parse_args(argv)
    order = random.Random(0)
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    for number in range(options.rounds):
        for job in options.jobs.split(","):
            for way in order.sample(WAYS, k=2):
                folder = options.out / f"{options.verb}-{job}-{way}-{number}"
                if not (folder / "figures.json").is_file():
                    measure(options.verb, job, way, folder, options.window)
                figures = json.loads((folder / "figures.json").read_text())
                rows.setdefault(job, {}).setdefault(way, []).append(figures)
                print(f"{job}, {way}: {json.dumps(figures)}", flush=True)
    for line in summary(rows):
        print(line)
    return 0


def measure(verb: str, job: str, way: str, folder: Path, window_s: float) -> None:
    scalescope = ["-m", "scalescope"] if way == "one" else [str(HERE / "one_start.py"), _SEPARATELY]
    command = [sys.executable, *scalescope, verb, f"--window={window_s}s", f"--output-dir={folder}"]
    command += ["--allow-writes", "--no-repeat-disturbed"]
    launcher = [sys.executable]
    if verb == "scale":
        command += ["--repeats=1", "--world-size=1,2"]
    if verb == "scale" or job == "fsdp2":
        launcher += ["-m", "torch.distributed.run", "--nproc-per-node={world_size}"]
    began = time.monotonic()
    ended = subprocess.run(
        [*command, "--", *launcher, str(JOBS), job], capture_output=True, text=True, check=False
    )
    if not (folder / "results.json").is_file():
        sys.exit(f"{job}, {way}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    figures = figures_of(folder) | {"seconds": time.monotonic() - began}
    (folder / "figures.json").write_text(json.dumps(figures))


def figures_of(folder: Path) -> dict[str, float]:
    """In milliseconds: the step, and its parts or what several ranks lose."""
    results = json.loads((folder / "results.json").read_text())["results"]
    step = results["training"][-1]
    figures = {"step": 1e3 * step["step_time_s"]["mean"], "starts": float(_starts(folder))}
    waterfalls = {"part": step["step_waterfall"]}
    if results["scaling"]:
        waterfalls["lost to"] = results["scaling"][-1]["waterfall"]
    for kind, waterfall in waterfalls.items():
        for term in (waterfall or {"terms": []})["terms"]:
            if term["time_s"] is not None:
                figures[f"{kind} {term['name']}"] = 1e3 * float(term["time_s"])
    again = [
        record["counters"][AGAIN] / statistics.median(record["samples"]["step_time_s"])
        for line in _lines(folder)
        for record in line["ranks"]
        if AGAIN in record["counters"]
    ]
    return figures | ({"again": statistics.fmean(again)} if again else {})


def _starts(folder: Path) -> int:
    return sum(line["duration_s"] > 0.0 for line in _lines(folder))


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def summary(rows: dict[str, dict[str, list[dict[str, float]]]]) -> list[str]:
    lines = []
    for job, ways in rows.items():
        pairs = list(zip(ways["one"], ways["separate"], strict=True))
        seconds = [one["seconds"] / other["seconds"] for one, other in pairs]
        starts = " → ".join(f"{statistics.fmean(row['starts'] for row in ways[way]):g}" for way in WAYS[::-1])
        lines.append(f"{job}: starts {starts}, time ÷ separate {statistics.fmean(seconds):.2f}")
        again = [one["again"] for one, _ in pairs if "again" in one]
        if again:
            lines.append(f"  second window ÷ first: {_shown([100 * ratio for ratio in again])}")
        for name in dict.fromkeys(name for pair in pairs for row in pair for name in row):
            if name in ("seconds", "starts", "again"):
                continue
            known = [(one, other) for one, other in pairs if name in one and name in other]
            if not known:
                lines.append(f"  {name}: not in both")
                continue
            scale = statistics.fmean(other["step"] for _, other in known)
            values = [100 * (one[name] - other[name]) / scale for one, other in known]
            mean_ms = statistics.fmean(other[name] for _, other in known)
            lines.append(
                f"  {name}: {mean_ms:.2f} ms of {scale:.2f}; difference {_shown(values)} of the step"
            )
    return lines


def _shown(values: Sequence[float]) -> str:
    estimate = mean_with_interval(list(values))
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return f"{estimate.value:.2f} %{interval}"


if __name__ == "__main__":
    sys.exit(run_separately(sys.argv[2:]) if sys.argv[1:2] == [_SEPARATELY] else main())
