"""Whether the lines that `tune` prints gain in a plain script what `scalescope train` measured.

    python benchmarks/tune_lines.py --workload benchmarks/tuning/own_jobs.py:transformer --device cpu \\
        --lever precision=bf16 --lever compile=default [--rounds 5] [--window 3]

Writes the training loop of the workload twice in plain PyTorch, as it is and with the lines of the levers.
Runs both scripts and both configurations of `scalescope train` in a random order, each in processes of its
own, round after round. Prints the two gains with 95 % intervals over rounds, and their ratio.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from from_tests import LoopOptions, plain_loop

import scalescope
from scalescope.analysis.statistics import Estimate, mean_of_logs
from scalescope.catalog.cards import all_settings, card
from scalescope.catalog.code_lines import CodeLine, ScriptContext
from scalescope.catalog.setting import for_device, parse_value
from scalescope.errors import BadInput, ScalescopeError
from scalescope.experiment.trial import Value
from scalescope.report.tuning.code import Changes, LeverCode, lever_codes

_CLOSE = 0.10  # ratio of the gains: further apart, and the lines are not what was measured


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and how long each process measures."""

    workload: str
    context: ScriptContext
    changes: Changes
    codes: tuple[LeverCode, ...]
    loop: LoopOptions
    threads: int

    @property
    def lines(self) -> tuple[CodeLine, ...]:
        return tuple(line for lever in self.codes for line in lever.added)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        comparison = _comparison(arguments)
    except ScalescopeError as error:
        print(f"tune_lines.py: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        speeds = measure(comparison, folder, arguments.rounds, random.Random(arguments.seed))
    for line in summary(speeds):
        print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", required=True, metavar="FILE.py:FUNCTION")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--lever", action="append", required=True, metavar="NAME=VALUE", dest="levers")
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=3.0, help="seconds that each process measures")
    parser.add_argument("--threads", type=int, help="CPU threads per rank (default: all cores)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of processes")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the scripts and runs here")
    return parser


def _comparison(arguments: argparse.Namespace) -> Comparison:
    ranks = arguments.world_size
    strategy = "single" if ranks == 1 else "ddp"
    context = ScriptContext(device=arguments.device, world_size=ranks, strategy=strategy)
    changes = changes_from(arguments.levers, arguments.workload, arguments.device)
    codes = lever_codes(changes, context)
    for lever in codes:
        if lever.instead:
            raise BadInput(f"--lever {lever.setting}: it has no line of PyTorch: {lever.instead}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Comparison(
        workload=arguments.workload,
        context=context,
        changes=changes,
        codes=codes,
        loop=LoopOptions(batch_size=arguments.batch_size, window_s=arguments.window),
        threads=arguments.threads or max(1, cores // ranks),
    )


def changes_from(words: Sequence[str], workload: str, device: str) -> Changes:
    """The settings of --lever, from what they are for a workload of one's own to what was asked for."""
    known, started_from = all_settings("train"), card("workloads", workload).defaults
    changes: dict[str, tuple[Value, Value]] = {}
    for word in words:
        name, separator, text = word.partition("=")
        if name not in known or not separator:
            raise BadInput(f"--lever: expected NAME=VALUE with the name of a setting, got {word!r}")
        setting = known[name][0]
        old = for_device(started_from.get(name, setting.default), device)
        if setting.kind == "env":
            variable, _, value = text.partition("=")
            changes[name] = (old, {**(changes.get(name, (None, None))[1] or {}), variable: value})
        else:
            changes[name] = (old, parse_value(setting, text, f"--lever {name}"))
    return changes


def measure(
    comparison: Comparison, folder: Path, rounds: int, order: random.Random
) -> dict[tuple[str, str], list[float]]:
    """ln(samples per second) of every round, by what measured and by (plain, levers)."""
    scripts = {"plain": (), "levers": comparison.lines}
    for name, lines in scripts.items():
        text = plain_loop(comparison.workload, lines, comparison.context, comparison.loop)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    kinds = [(by, with_what) for by in ("script", "train") for with_what in scripts]
    speeds: dict[tuple[str, str], list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for by, with_what in order.sample(kinds, k=len(kinds)):
            has_levers = with_what == "levers"
            if by == "script":
                speed = _run_script(comparison, folder / f"{with_what}.py", has_levers=has_levers)
            else:
                speed = _run_train(comparison, folder / f"{with_what}-{number}", has_levers=has_levers)
            speeds[by, with_what].append(math.log(speed))
            print(f"round {number + 1}: {by}, {with_what}: {speed:,.1f} samples/s", flush=True)
    return speeds


def _run_script(comparison: Comparison, script: Path, *, has_levers: bool) -> float:
    ranks = comparison.context.world_size
    runner = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    shell = {line.argument: line.text for line in comparison.lines if line.part == "shell" and has_levers}
    environment = {**os.environ, "OMP_NUM_THREADS": str(comparison.threads), **shell}
    output = _output([sys.executable, *runner, str(script)], environment)
    return float(json.loads(output.splitlines()[-1])["samples_per_s"])


def _run_train(comparison: Comparison, folder: Path, *, has_levers: bool) -> float:
    loop, context = comparison.loop, comparison.context
    flags = {
        "workload": comparison.workload,
        "device": context.device,
        "world_size": context.world_size,
        "batch_size": loop.batch_size,
        "window": f"{loop.window_s}s",
        "warmup_steps": loop.warmup_steps,
        "threads_per_rank": comparison.threads,
        "repeats": 1,
        "output_dir": folder,
        **({name: new for name, (_, new) in comparison.changes.items()} if has_levers else {}),
    }
    words = [word for name, value in flags.items() for word in _flag(name, value)]
    _output([sys.executable, "-m", "scalescope", "train", "--no-breakdown", *words], dict(os.environ))
    (launch,) = scalescope.load(folder).trials()
    return float(launch["samples_per_s"])


def _flag(name: str, value: Value) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, dict):
        return [f"--{flag}={variable}={text}" for variable, text in value.items()]
    return [f"--{flag}={'none' if value is None else value}"]


def _output(command: list[str], environment: dict[str, str]) -> str:
    """What a command printed; what went wrong is shown where it fails."""
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        print(ended.stdout, ended.stderr, sep="\n", file=sys.stderr)
        raise SystemExit(f"exit code {ended.returncode} of {' '.join(command)}")
    return ended.stdout


def summary(speeds: dict[tuple[str, str], list[float]]) -> list[str]:
    """Both gains and their ratio, paired by round."""
    gains = {
        by: [
            with_ - without for with_, without in zip(speeds[by, "levers"], speeds[by, "plain"], strict=True)
        ]
        for by in ("script", "train")
    }
    ratios = [lines - levers for lines, levers in zip(gains["script"], gains["train"], strict=True)]
    ratio = mean_of_logs(ratios)
    return [
        f"gain of the printed lines in a plain script: {_shown(mean_of_logs(gains['script']))}",
        f"gain of the levers in scalescope train:      {_shown(mean_of_logs(gains['train']))}",
        f"ratio: {_shown(ratio)}, {_verdict(ratio)}",
    ]


def _verdict(ratio: Estimate) -> str:
    """Whether the gains are the same, by the whole interval of their ratio."""
    low, high = (ratio.value if end is None else end for end in (ratio.low, ratio.high))
    if low >= 1.0 - _CLOSE and high <= 1.0 + _CLOSE:
        return f"within {_CLOSE:.0%}" if ratio.has_interval else f"within {_CLOSE:.0%} in one round"
    if high < 1.0 - _CLOSE or low > 1.0 + _CLOSE:
        return f"not within {_CLOSE:.0%}"
    return f"not known to be within {_CLOSE:.0%}; more --rounds or a longer --window decide"


def _shown(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.3f}, {estimate.high:.3f}]" if estimate.has_interval else ""
    return f"{estimate.value:.3f}×{interval}"


if __name__ == "__main__":
    sys.exit(main())
