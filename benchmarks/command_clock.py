"""A script's own clock with and without scalescope, in alternating launches: what does watching it cost?

    python benchmarks/command_clock.py [--pairs 6] [--steps 400] [--window 5] [-- arguments of gpt_script.py]

Each pair starts benchmarks/commands/gpt_script.py plainly and under `scalescope train --keep-running`, in
random order. Compared is the script's own median time per step; the window should cover most of it. Prints
the ratio with its 95 % interval over pairs, and what scalescope measured beside the own clock. Where launches
differ by more than the cost, `attach_cost.py` tells more: it compares inside one process.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import scalescope
from scalescope.analysis.statistics import mean_with_interval

SCRIPT = Path(__file__).resolve().parent / "commands" / "gpt_script.py"
_FIRST = 4  # tens of steps that are left out: compiling, allocating, our own warm-up


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--window", type=float, default=5.0)
    parser.add_argument("script_arguments", nargs="*")
    options = parser.parse_args(argv)
    order = random.Random(0)
    logs, gaps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(options.pairs):
            own_s = {}
            for watched in order.sample((True, False), k=2):
                out = Path(folder) / f"{pair}-{watched}"
                own_s[watched], measured_s = launched(out, watched, options)
                if measured_s is not None:
                    gaps.append(measured_s / own_s[watched] - 1)
            logs.append(math.log(own_s[True] / own_s[False]))
            print(f"pair {pair + 1}: {own_s[False] * 1e3:.3f} and {own_s[True] * 1e3:.3f} ms", flush=True)
    ratio = mean_with_interval(logs)
    difference = mean_with_interval(gaps)
    summary = {
        "pairs": options.pairs,
        "slowdown_percent": _percent(math.expm1(ratio.value)),
        "low": _percent(math.expm1(ratio.low)),
        "high": _percent(math.expm1(ratio.high)),
        "measured_minus_own_clock_percent": [
            _percent(value) for value in (difference.low, difference.value, difference.high)
        ],
    }
    print(json.dumps(summary))
    return 0


def _percent(share: float) -> float:
    return round(100 * share, 3)


def launched(out: Path, watched: bool, options: argparse.Namespace) -> tuple[float, float | None]:
    """The script's own time per step, and what scalescope measured."""
    log = out.with_suffix(".json")
    script = [sys.executable, str(SCRIPT), "--steps", str(options.steps), *options.script_arguments]
    command = script
    if watched:
        command = [sys.executable, "-m", "scalescope", "train", "--keep-running", "--repeats", "1"]
        command += ["--window", f"{options.window}s", "--output-dir", str(out), "--", *script]
    ended = subprocess.run(
        command, env={**os.environ, "LOG": str(log)}, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(f"exit code {ended.returncode}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
    times_s = json.loads(log.read_text(encoding="utf-8"))[_FIRST:]
    own_s = statistics.median(times_s)
    if not watched:
        return own_s, None
    rows = [row for row in scalescope.load(out).trials() if row["mean_step_time_s"] is not None]
    return own_s, float(rows[0]["mean_step_time_s"])


if __name__ == "__main__":
    sys.exit(main())
