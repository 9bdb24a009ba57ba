"""`scalescope tune` next to a hand-written loop on jobs that it was not built with, with default flags.

    python benchmarks/tune_by_hand.py [--jobs vit,bert] [--budget 3m] [--nanogpt FOLDER] [--out FOLDER]

For each job of benchmarks/tuning/jobs.py: the expert's loop (hand_loops.py), `tune` with that budget and
nothing else, then what both recommend in turns in the expert's loop. That ratio is the score. For the two
commands, nanogpt and trainer, the script's own log with the best arguments (hand_commands.py) stands next to
the step that `tune` measured. Every part is kept in --out as it comes; what is there is not measured again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tuning"))

from hand_commands import command_of  # noqa: E402
from hand_loops import Settings, settings_of  # noqa: E402

OUT = HERE.parent / "build" / "tune_by_hand"
JOBS = ("vit", "bert", "resnet", "unet", "lstm", "dlrm", "diffusion", "gan", "speech", "lora")
COMMANDS = ("nanogpt", "trainer")
_LOOPS_S, _COMMANDS_S, _CHECK_S = 60.0, 110.0, 40.0  # that each part may take
_STARTING_S = 25.0
_BLOCKS = 3
# What can be taken away in a model that is compiled already. An epoch's beginning is rarely in a block, so
# persistent_workers is not among them; neither is cudnn_benchmark, whose choice stays for the process.
_EXCHANGED = ("fused_optimizer", "num_workers", "pin_memory", "non_blocking", "prefetch_factor")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="tune next to a hand-written loop.")
    parser.add_argument("--jobs", default=",".join((*JOBS, *COMMANDS)))
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--nanogpt", type=Path, help="a clone of karpathy/nanoGPT; without it that is left out"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--minutes", type=float, default=9.5, help="by then all of it is over")
    options = parser.parse_args(argv)
    _make_paths_absolute()
    names = options.jobs.split(",")
    unknown = set(names) - {*JOBS, *COMMANDS}
    if unknown:
        parser.error(f"no such job: {', '.join(sorted(unknown))}; jobs: {', '.join((*JOBS, *COMMANDS))}")
    ends = time.monotonic() + 60.0 * options.minutes
    rows = []
    for name in names:
        if name == "nanogpt" and options.nanogpt is None:
            print("nanogpt: left out, for --nanogpt FOLDER is missing")
            continue
        case = Case(name, options)
        row = case.row(ends)
        if row is None:
            print(f"{name}: no time was left; the next call goes on")
            break
        print(_details(row), flush=True)
        rows.append(row)
    print(_table(rows))
    return 0


def _make_paths_absolute() -> None:
    """Scripts are run in folders of their own."""
    if "PYTHONPATH" in os.environ:
        entries = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in entries)


class Case:
    """A job or a command, and what is known of it so far."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self._options = name, options
        self._folder = options.out.resolve() / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._is_command = name in COMMANDS

    def row(self, ends: float) -> dict[str, Any] | None:
        """All that is known at the end; None while time was too short for a part."""
        if (self._folder / "row.json").is_file():
            stored: dict[str, Any] = json.loads((self._folder / "row.json").read_text())
            return stored
        parts = {
            "by_hand": (self._by_hand, (_COMMANDS_S if self._is_command else _LOOPS_S) + _STARTING_S),
            "tune": (self._tune, _seconds(self._options.budget) + _STARTING_S),
            "check": (self._check, _CHECK_S + _STARTING_S),
        }
        for part, (measure, needs_s) in parts.items():
            file = self._folder / f"{part}.json"
            if file.is_file():
                continue
            if time.monotonic() + needs_s > ends:
                return None
            file.write_text(json.dumps(measure(), indent=1))
        row = {"job": self.name, **{part: self._read(part) for part in parts}}
        row.update(_score(row))
        (self._folder / "row.json").write_text(json.dumps(row, indent=1))
        return row

    def _read(self, part: str) -> Any:
        return json.loads((self._folder / f"{part}.json").read_text())

    def _by_hand(self) -> dict[str, Any]:
        """The expert's lines: the last one is the summary, if it came to that."""
        if self._is_command:
            script = ["hand_commands.py", self.name, "--folder", str(self._folder / "files")]
            script += ["--nanogpt", str(self._options.nanogpt)] if self.name == "nanogpt" else []
            script += ["--limit", str(_COMMANDS_S - 60.0)]
        else:
            script = ["hand_loops.py", self.name, "--device", self._options.device, "--limit", str(_LOOPS_S)]
        command = [sys.executable, str(HERE / "tuning" / script[0]), *script[1:]]
        with (self._folder / "by_hand.txt").open("w") as errors:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        settings = [line for line in lines if "setting" in line]
        worked = [line for line in settings if "ms" in line]
        best = min(worked, key=lambda line: line["ms"], default={})
        return {
            "exit_code": done.returncode,
            "lines": lines,
            "best": best.get("setting"),
            "best_ms": best.get("ms"),
            "best_settings": best.get("settings"),
            "took_s": lines[-1].get("took_s") if lines else None,
        }

    def _tune(self) -> dict[str, Any]:
        run = self._folder / "run"
        for number in range(1, 100):  # what was broken off stays where it is
            if run.exists():
                run = self._folder / f"run-{number}"
        flags = ["--budget", self._options.budget, "--output-dir", str(run)]
        folder: Path | None = None
        if self._is_command:
            clone = self._options.nanogpt
            command = command_of(self.name, clone, self._folder / "files")
            folder = command.folder
            arguments = [*flags, "--device", self._options.device, "--", *command.unedited()]
        else:
            import jobs

            workload = f"{HERE / 'tuning' / 'jobs.py'}:{self.name}"
            size = str(jobs.BATCH[self.name])
            device = self._options.device
            arguments = ["--workload", workload, "--batch-size", size, "--device", device, *flags]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "scalescope", "tune", *arguments],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "COLUMNS": "160"},
        )
        took_s = time.monotonic() - began
        (self._folder / "tune.txt").write_text(done.stdout + done.stderr)
        tuning = json.loads((run / "tuning.json").read_text()) if (run / "tuning.json").is_file() else {}
        kept = ("verdict", "winner", "recommended", "combinations", "levers", "inapplicable", "script")
        return {
            "exit_code": done.returncode,
            "took_s": took_s,
            "budget_s": _seconds(self._options.budget),
            **{name: tuning.get(name) for name in kept},
            "leaderboard": _leaderboard(run),
        }

    def _check(self) -> dict[str, Any]:
        """The expert's best and what is recommended, in turns in the expert's loop."""
        by_hand, tune = self._read("by_hand"), self._read("tune")
        if self._is_command or by_hand["best_settings"] is None or tune["winner"] is None:
            return {}
        levers = tune["winner"] if tune["recommended"] else []
        recommended, not_mapped = settings_of(levers)
        began = time.monotonic()
        with (self._folder / "check.txt").open("w") as errors:
            loops = [Served(self.name, self._options.device, errors) for _ in range(2)]
            try:
                expert = Settings(**by_hand["best_settings"])
                found = _in_turns(*zip(loops, (expert, recommended), strict=True))
                removed = _removals(loops[1], levers, recommended, began + _CHECK_S)
            except RuntimeError as error:
                return {"failed": str(error), "not_mapped": not_mapped}
            finally:
                for loop in loops:
                    loop.close()
        return {
            "expert_ms": found[0],
            "recommended_ms": found[1],
            "recommended_settings": asdict(recommended),
            "not_mapped": not_mapped,
            "without_ms": removed,
            "took_s": time.monotonic() - began,
        }


class Served:
    """The expert's loop in a process that answers settings with the time of a block of steps."""

    def __init__(self, job: str, device: str, errors: Any) -> None:
        command = [sys.executable, str(HERE / "tuning" / "hand_loops.py"), job, "--device", device, "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        self._too_long = threading.Timer(3.0 * _CHECK_S, self._process.kill)
        self._too_long.start()

    def ask(self, settings: Settings) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(settings)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("a loop ended") from None

    def answer(self) -> float:
        """Milliseconds per step of the block that was asked for."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "failed" in answer:
                    raise RuntimeError(answer["failed"])
                return float(answer["ms"])
        raise RuntimeError("a loop ended without an answer")

    def milliseconds(self, settings: Settings) -> float:
        self.ask(settings)
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self._too_long.cancel()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(20.0)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def _in_turns(*sides: tuple[Served, Settings]) -> list[list[float]]:
    """Blocks of both sides, in turns. Both compile at once before that."""
    for loop, settings in sides:
        loop.ask(settings)
    for loop, _ in sides:
        loop.answer()
    times: list[list[float]] = [[] for _ in sides]
    for block in range(_BLOCKS):
        for side in (0, 1) if block % 2 == 0 else (1, 0):
            loop, settings = sides[side]
            times[side].append(loop.milliseconds(settings))
    return times


def _removals(
    loop: Served, levers: Sequence[str], recommended: Settings, ends: float
) -> dict[str, list[list[float]]]:
    """Each lever that can be exchanged taken away: blocks with it and without it, in turns."""
    found: dict[str, list[list[float]]] = {}
    for lever in levers:
        name = lever.partition(" ")[0]
        if name not in _EXCHANGED or time.monotonic() > ends:
            continue
        gone = {"num_workers", "persistent_workers", "prefetch_factor"} if name == "num_workers" else {name}
        plain = asdict(Settings())
        without = Settings(**{**asdict(recommended), **{key: plain[key] for key in gone}})
        loop.milliseconds(without)
        times: list[list[float]] = [[], []]
        for _ in range(2):
            times[0].append(loop.milliseconds(recommended))
            times[1].append(loop.milliseconds(without))
        found[lever] = times
    return found


def _score(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the table."""
    by_hand, tune, check = row["by_hand"], row["tune"], row["check"]
    steps_ms = {
        frozenset(tried["levers"]): tried["step_time_s"] * 1e3
        for tried in tune["combinations"] or ()
        if tried["failure"] is None
    }
    winner = frozenset(tune["winner"] or ()) if tune["recommended"] else frozenset()
    winner_ms = steps_ms.get(winner)
    score: float | None = None
    if check.get("recommended_ms"):
        score = statistics.fmean(check["expert_ms"]) / statistics.fmean(check["recommended_ms"])
    elif row["job"] in COMMANDS and winner_ms and by_hand["best_ms"]:
        score = by_hand["best_ms"] / winner_ms
    useless = [
        lever
        for lever in sorted(winner)
        if winner_ms is not None and steps_ms.get(winner - {lever}, float("inf")) <= winner_ms
    ]
    for lever, (with_ms, without_ms) in (check.get("without_ms") or {}).items():
        if statistics.fmean(without_ms) <= statistics.fmean(with_ms) and lever not in useless:
            useless.append(lever)
    plain = next((line for line in by_hand["lines"] if line.get("setting") == "plain"), {})
    return {
        "baseline_ms": plain.get("ms"),
        "tune_baseline_ms": steps_ms.get(frozenset()),
        "expert": by_hand["best"],
        "expert_ms": by_hand["best_ms"],
        "tune_recommends": sorted(winner),
        "tune_ms": winner_ms,
        "speed_over_expert": score,
        "useless": useless,
        "used_s": tune["took_s"],
        "budget_s": tune["budget_s"],
    }


def _seconds(budget: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    return float(budget[:-1]) * units[budget[-1]] if budget[-1] in units else float(budget)


def _leaderboard(run: Path) -> list[dict[str, Any]]:
    """Every launch with the time at which it ended, what it was, and its step."""
    trials = run / "trials.jsonl"
    results = [json.loads(line) for line in trials.read_text().splitlines()] if trials.is_file() else []
    began = datetime.fromisoformat(results[0]["started_at"]) if results else None
    rows = []
    for result in results:
        assert began is not None
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


def _details(row: Mapping[str, Any]) -> str:
    """All that was tried, by hand and by tune."""
    by_hand, tune, check = row["by_hand"], row["tune"], row["check"]
    lines = [f"\n== {row['job']}: {tune['verdict']} (exit {tune['exit_code']}, {tune['took_s']:.0f} s)"]
    for line in by_hand["lines"]:
        if "setting" in line:
            result = f"{line['ms']:.2f} ms" if "ms" in line else f"failed: {line['failed']}"
            lines.append(f"  by hand  {line['setting']}: {result}")
        elif "input" in line:
            lines.append(f"  by hand  input: {json.dumps(line['input'])}")
    if check.get("recommended_ms"):
        for side in ("expert_ms", "recommended_ms"):
            lines.append(f"  in turns {side}: " + ", ".join(f"{ms:.2f}" for ms in check[side]))
        for lever, times in check["without_ms"].items():
            lines.append(f"  without  {lever}: {statistics.fmean(times[1]) / statistics.fmean(times[0]):.3f}")
        if check["not_mapped"]:
            lines.append(f"  not in the expert's loop: {', '.join(check['not_mapped'])}")
    elif check.get("failed"):
        lines.append(f"  in turns failed: {check['failed']}")
    names = {c["trial_id"]: " + ".join(c["levers"]) for c in tune["combinations"] or ()}
    for launch in tune["leaderboard"]:
        step = "-" if launch["step_ms"] is None else f"{launch['step_ms']:.2f} ms"
        name = names.get(launch["trial_id"], launch["trial_id"]) or "current settings"
        lines.append(f"  {launch['at_s']:6.1f} s  {launch['stage']}  {name}: {step} {launch['reason'] or ''}")
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What goes into the document."""
    titles = ("job", "baseline ms", "expert's best", "its ms", "tune recommends", "its ms", "speed ÷ expert")
    lines = [
        "",
        "| " + " | ".join((*titles, "useless levers", "seconds of the budget")) + " |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            row["job"],
            _number(row["baseline_ms"]),
            row["expert"] or "nothing worked",
            _number(row["expert_ms"]),
            " + ".join(row["tune_recommends"]) or "nothing",
            _number(row["tune_ms"]),
            _number(row["speed_over_expert"], 3),
            ", ".join(row["useless"]) or "none",
            f"{row['used_s']:.0f} of {row['budget_s']:.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    scores = [row["speed_over_expert"] for row in rows if row["speed_over_expert"] is not None]
    if scores:
        median, least = statistics.median(scores), min(scores)
        lines.append(f"\nspeed ÷ expert: median {median:.3f}, least {least:.3f}, of {len(scores)}")
    return "\n".join(lines)


def _number(value: float | None, places: int = 2) -> str:
    return "-" if value is None else f"{value:.{places}f}"


if __name__ == "__main__":
    sys.exit(main())
