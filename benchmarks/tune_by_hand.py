"""`scalescope tune` next to a hand-written loop, in one call on one GPU, with default flags.

    python benchmarks/tune_by_hand.py [--jobs transformer,resnet50,mlp256,mlp4096,own] [--budget 3m]

For each job: the expert's loop (benchmarks/tuning/hand_loops.py), then `tune` with that budget and nothing
else. Prints the best of both, their ratio, and every launch over time. Results are kept in `--out`, and what
is there is not measured again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "build" / "tune_by_hand"
_FLAGS = {
    "transformer": ["--workload", "transformer"],
    "resnet50": ["--workload", "cnn", "--batch-size", "256"],
    "mlp256": ["--batch-size", "256"],
    "mlp4096": ["--batch-size", "4096"],
    "own": ["--workload", f"{HERE / 'tuning' / 'own_gpt.py'}:build", "--batch-size", "16"],
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="tune next to a hand-written loop.")
    parser.add_argument("--jobs", default=",".join(_FLAGS))
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--minutes", type=float, default=9.0, help="no new job begins after these")
    options = parser.parse_args(argv)
    ends = time.monotonic() + 60.0 * options.minutes
    for name in options.jobs.split(","):
        folder = options.out / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "row.json").is_file():
            if time.monotonic() > ends:
                print(f"{name}: no time was left; the next call goes on")
                continue
            row = _measured(name, folder, options.budget, options.device)
            (folder / "row.json").write_text(json.dumps(row, indent=1))
        _show(json.loads((folder / "row.json").read_text()))
    return 0


def _measured(name: str, folder: Path, budget: str, device: str) -> dict[str, Any]:
    by_hand = _by_hand(name, device)
    run = folder / "run"
    command = [sys.executable, "-m", "scalescope", "tune", *_FLAGS[name]]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--device", device, "--budget", budget, "--output-dir", str(run)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160"},
    )
    took_s = time.monotonic() - began
    (folder / "tune.txt").write_text(done.stdout + done.stderr)
    tuning = json.loads((run / "tuning.json").read_text()) if (run / "tuning.json").is_file() else {}
    return {
        "job": name,
        "by_hand": by_hand,
        "exit_code": done.returncode,
        "took_s": took_s,
        "verdict": tuning.get("verdict"),
        "winner": tuning.get("winner"),
        "recommended": tuning.get("recommended"),
        "combinations": tuning.get("combinations", []),
        "levers": tuning.get("levers", []),
        "leaderboard": _leaderboard(run),
    }


def _by_hand(name: str, device: str) -> dict[str, Any]:
    loops = [sys.executable, str(HERE / "tuning" / "hand_loops.py"), name, "--device", device]
    done = subprocess.run(loops, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"failed": done.stderr[-2000:]}
    by_hand: dict[str, Any] = json.loads(lines[-1])
    return by_hand


def _leaderboard(run: Path) -> list[dict[str, Any]]:
    """Every launch with the time at which it ended, what it was, and its step."""
    trials = run / "trials.jsonl"
    if not trials.is_file():
        return []
    results = [json.loads(line) for line in trials.read_text().splitlines()]
    began = datetime.fromisoformat(results[0]["started_at"])
    rows = []
    for result in results:
        times = [time_s for rank in result["ranks"][:1] for time_s in rank["samples"].get("step_time_s", ())]
        started = datetime.fromisoformat(result["started_at"])
        rows.append(
            {
                "at_s": round((started - began).total_seconds() + result["duration_s"], 1),
                "took_s": round(result["duration_s"], 1),
                "stage": (result["stage"] or {}).get("kind"),
                "status": result["status"],
                "reason": result.get("reason"),
                "step_ms": sum(times) / len(times) * 1e3 if times else None,
                "trial_id": result["trial_id"],
            }
        )
    return rows


def _show(row: dict[str, Any]) -> None:
    hand = row["by_hand"].get("ms") or {}
    print(f"\n== {row['job']}: {row['verdict']} (exit {row['exit_code']}, {row['took_s']:.0f} s)")
    print("  by hand: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in hand.items()))
    steps = {tuple(c["levers"]): c["step_time_s"] * 1e3 for c in row["combinations"]}
    winner_ms = steps.get(tuple(row["winner"] or ()))
    if hand and winner_ms:
        best = min(hand, key=lambda name: hand[name])
        print(
            f"  winner {winner_ms:.2f} ms; best by hand {best} {hand[best]:.2f} ms: "
            f"{hand[best] / winner_ms:.3f} of its speed"
        )
    names = {c["trial_id"]: " + ".join(c["levers"]) or "current settings" for c in row["combinations"]}
    for launch in row["leaderboard"]:
        step = "-" if launch["step_ms"] is None else f"{launch['step_ms']:.2f} ms"
        name = names.get(launch["trial_id"], launch["trial_id"])
        print(f"  {launch['at_s']:6.1f} s  {launch['stage']}  {name}: {step} {launch['reason'] or ''}")


if __name__ == "__main__":
    sys.exit(main())
