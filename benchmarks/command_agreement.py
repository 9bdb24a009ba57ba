"""The same job as `build()`, as `Job(step=...)` and as a script, interleaved: do the figures agree?

    python benchmarks/command_agreement.py [--device cpu] [--rounds 6] [--window 3] [--out FOLDER]

Every round runs `scalescope scale --world-size 1,2` on the three forms (benchmarks/commands/same_job.py) in a
random order, each with one launch of every trial. Prints the step time on two ranks and the exposed
communication of each form with 95 % intervals over rounds, and their differences from the script. On a GPU
`scalescope train` measures one rank. What is in `--out` is not measured again.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import scalescope
from scalescope.analysis.statistics import Estimate, mean_with_interval

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "commands" / "same_job.py"
FORMS = {
    "build": ["--workload", f"{SCRIPT}:build", "--batch-size", "64"],
    "job": ["--workload", f"{SCRIPT}:job", "--batch-size", "64"],
    "script": [],
}
_WIDTHS = {"cpu": "768", "cuda": "8192"}
_COMMAND = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node={world_size}", str(SCRIPT)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--window", type=float, default=3.0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "command_agreement")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(argv)
    order = random.Random(0)
    rows: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    for number in range(options.rounds):
        for form in order.sample(sorted(FORMS), k=len(FORMS)):
            folder = options.out / f"{form}-{number}"
            if not (folder / "trials.jsonl").is_file():
                _measure(form, folder, options.window, options.device)
            rows[form].append(_figures(folder))
            print(f"round {number + 1}, {form}: {json.dumps(rows[form][-1])}", flush=True)
    for line in summary(rows):
        print(line)
    return 0


def _measure(form: str, folder: Path, window_s: float, device: str) -> None:
    asked = ["scale", "--world-size", "1,2"] if device == "cpu" else ["train", "--no-breakdown"]
    command = [sys.executable, "-m", "scalescope", *asked, "--device", device]
    command += ["--repeats", "1", "--window", f"{window_s}s", "--output-dir", str(folder), *FORMS[form]]
    if form == "script":
        command += _COMMAND if device == "cpu" else ["--", sys.executable, str(SCRIPT)]
    environment = {**os.environ, "SAME_JOB_DEVICE": device, "SAME_JOB_WIDTH": _WIDTHS[device]}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ended.returncode:
        raise SystemExit(f"{form}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}")


def _figures(folder: Path) -> dict[str, float]:
    """Milliseconds per step on two ranks, without communication, and on one rank."""
    trials = [row for row in scalescope.load(folder).trials() if row["mean_step_time_s"] is not None]

    def step_ms(ranks: int, **settings: Any) -> float:
        chosen = [
            row
            for row in trials
            if row["world_size"] == ranks
            and all(bool(row.get(name)) is value for name, value in settings.items())
        ]
        return 1e3 * min(row["mean_step_time_s"] for row in chosen)

    one_rank = {"one_rank_ms": step_ms(1, without_communication=False, with_preloaded_input=False)}
    if all(row["world_size"] == 1 for row in trials):
        return one_rank
    preloaded = step_ms(2, without_communication=False, with_preloaded_input=True)
    silent = step_ms(2, without_communication=True, with_preloaded_input=True)
    return {
        "two_ranks_ms": step_ms(2, without_communication=False, with_preloaded_input=False),
        "communication_ms": preloaded - silent,
        **one_rank,
    }


def summary(rows: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = []
    for name in rows["script"][0]:
        for form, figures in rows.items():
            values = [figure[name] for figure in figures]
            paired = [mine - script[name] for mine, script in zip(values, rows["script"], strict=True)]
            text = f"{name}, {form}: {_shown(mean_with_interval(values))}"
            if form != "script":
                text += f"; minus the script: {_shown(mean_with_interval(paired))}"
            lines.append(text)
    return lines


def _shown(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return f"{estimate.value:.2f} ms{interval}"


if __name__ == "__main__":
    sys.exit(main())
