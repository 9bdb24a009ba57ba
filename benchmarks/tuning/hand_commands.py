"""Two training scripts as an expert runs them: with the arguments that make each fastest.

    python benchmarks/tuning/hand_commands.py trainer [--limit 240]
    python benchmarks/tuning/hand_commands.py nanogpt --nanogpt FOLDER

nanoGPT's train.py is run as it lies in FOLDER, a clone of karpathy/nanoGPT, from a copy with random tokens as
its data. Prints a line of JSON for every set of arguments, then the best of them. The time of a step is what
lies between two lines of the script's own log, before each of which it waits for the GPU. The median of the
later lines counts.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
_SMALL = os.environ.get("TUNE_SCALE") == "small"
_STEPS_PER_LINE = 2 if _SMALL else 10
_LINES = 13  # of a run, of which the first are left out
_LEFT_OUT = 4


@dataclass(frozen=True, kw_only=True)
class Command:
    """A script, the arguments that it always has, those at first, and those of an expert."""

    script: Sequence[str]
    plain: Sequence[str]
    tried: Mapping[str, Sequence[str]]  # in place of the plain ones
    to_end: Sequence[str]  # ends the script after all lines that are read
    line: re.Pattern[str]
    folder: Path

    def unedited(self) -> list[str]:
        """The command that is tuned."""
        return [sys.executable, *self.script, *self.plain]


def nanogpt(clone: Path, folder: Path) -> Command:
    """GPT-2 small on 12 x 1,024 tokens; by its own arguments without torch.compile and in float32."""
    copy = folder / "nanoGPT"
    if not (copy / "data" / "tokens" / "train.bin").is_file():
        shutil.copytree(clone, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "out*"))
        _write_tokens(copy / "data" / "tokens")
    sizes = {"n_layer": 12, "n_head": 12, "n_embd": 768, "batch_size": 12, "block_size": 1024}
    if _SMALL:
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "batch_size": 4, "block_size": 64}
    given = {
        "dataset": "tokens",
        **sizes,
        "gradient_accumulation_steps": 1,
        "eval_interval": 100_000,
        "eval_iters": 1,
        "log_interval": _STEPS_PER_LINE,
        "wandb_log": False,
        **({"device": "cpu"} if _SMALL else {}),
    }
    return Command(
        script=["train.py", *(f"--{name}={value}" for name, value in given.items())],
        plain=["--compile=False", "--dtype=float32"],
        tried={
            "bfloat16 + compile": ["--compile=True", "--dtype=bfloat16"],
            "bfloat16": ["--compile=False", "--dtype=bfloat16"],
            "compile": ["--compile=True", "--dtype=float32"],
            "float16 + compile": ["--compile=True", "--dtype=float16"],
        },
        to_end=[f"--max_iters={_LINES * _STEPS_PER_LINE}"],
        line=re.compile(r"^iter \d+: loss"),
        folder=copy,
    )


def _write_tokens(folder: Path) -> None:
    """Random tokens as nanoGPT reads them: whole numbers of two bytes."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(0)
    for name, count in (("train", 2_000_000), ("val", 200_000)):
        random.integers(0, 50_257, count, dtype=numpy.uint16).tofile(folder / f"{name}.bin")


def trainer(folder: Path) -> Command:
    """GPT-2 small on 16 x 512 tokens by the Trainer of transformers, in fp32."""
    folder.mkdir(parents=True, exist_ok=True)
    small = ["--layers", "2", "--width", "64", "--vocabulary", "500", "--block_size", "32", "--use_cpu"]
    given = [
        *("--output_dir", str(folder / "output")),
        *("--per_device_train_batch_size", "4" if _SMALL else "16"),
        *("--seed", "0", "--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "True"),
        *("--logging_steps", str(_STEPS_PER_LINE)),
        *(small if _SMALL else ()),
    ]
    return Command(
        script=[str(HERE / "trainer_script.py"), *given],
        plain=[],
        tried={
            "bf16 + fused + loader 4 + compile": _quick("--bf16", "--torch_compile"),
            "bf16 + fused + compile": ["--bf16", "--optim", "adamw_torch_fused", "--torch_compile"],
            "bf16 + fused + loader 4": _quick("--bf16"),
            "bf16": ["--bf16"],
            "tf32 + fused + loader 4 + compile": _quick("--tf32", "True", "--torch_compile"),
        },
        to_end=["--max_steps", str(_LINES * _STEPS_PER_LINE)],
        line=re.compile(r"^\{.*['\"]loss['\"]"),
        folder=folder,
    )


def _quick(*more: str) -> list[str]:
    workers = ["--dataloader_num_workers", "4", "--dataloader_persistent_workers", "True"]
    return ["--optim", "adamw_torch_fused", *workers, *more]


def measure(command: Command, limit_s: float) -> None:
    """Every set of arguments, the plain ones first; none begins after the limit."""
    began = time.monotonic()
    times_ms: dict[str, float | None] = {}
    for name, arguments in {"plain": command.plain, **command.tried}.items():
        left_s = limit_s - (time.monotonic() - began)
        if left_s < 0.0:
            break
        line: dict[str, object] = {"setting": name, "arguments": list(arguments)}
        try:
            times_ms[name] = line["ms"] = _step_ms(command, arguments, max(60.0, left_s))
        except RuntimeError as error:
            times_ms[name] = None
            line["failed"] = str(error)
        print(json.dumps(line), flush=True)
    worked = {name: ms for name, ms in times_ms.items() if ms is not None}
    best = min(worked, key=lambda name: worked[name], default=None)
    summary = {"ms": times_ms, "best": best, "best_ms": worked.get(best or ""), "best_settings": None}
    print(json.dumps({"took_s": time.monotonic() - began, **summary}), flush=True)


def _step_ms(command: Command, arguments: Sequence[str], limit_s: float) -> float:
    """Milliseconds per step by the lines of a script's log."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-u", *command.script, *arguments, *command.to_end],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=command.folder,
        )
        too_long = threading.Timer(limit_s, process.kill)
        too_long.start()
        assert process.stdout is not None
        came = [time.perf_counter() for text in process.stdout if command.line.match(text)]
        code = process.wait()
        too_long.cancel()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    steps_s = [later - earlier for earlier, later in itertools.pairwise(came)][_LEFT_OUT:]
    if len(steps_s) < 3:
        raise RuntimeError(f"exit {code}, lines {len(came)}: {said[-1] if said else ''}"[:300])
    return statistics.median(steps_s) / _STEPS_PER_LINE * 1e3


def command_of(name: str, clone: Path | None, folder: Path) -> Command:
    if name == "trainer":
        return trainer(folder)
    if clone is None:
        raise SystemExit("nanogpt requires --nanogpt FOLDER, a clone of karpathy/nanoGPT")
    return nanogpt(clone.resolve(), folder)


def main() -> int:
    parser = argparse.ArgumentParser(description="Training scripts with their best arguments.")
    parser.add_argument("script", choices=("nanogpt", "trainer"))
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="for the script's files")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which no run begins")
    options = parser.parse_args()
    measure(command_of(options.script, options.nanogpt, options.folder.resolve()), options.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
