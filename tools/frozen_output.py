"""Freeze what verbs print and write for stored runs, to see what a change of the code changes for users.

1. `python tools/frozen_output.py make RUNS` measures about twenty short runs of every kind (ten minutes) and
   makes some by the simulated launcher. Any other run folder may be copied beside them.
2. `python tools/frozen_output.py freeze RUNS OUT` runs every verb that reads runs and writes what it printed
   and what it wrote. `diff -r` of two such folders shows what a change of the code changes.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SHORT = ("--window=0.3s", "--repeats=2")
_SCRIPT = """import os

import torch

if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    torch.distributed.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
if torch.distributed.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, labels = torch.randn(4096, 128), torch.randint(0, 10, (4096,))
data = torch.utils.data.TensorDataset(inputs, labels)
for _ in range(1000):
    for batch, wanted in torch.utils.data.DataLoader(data, batch_size=64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), wanted).backward()
        optimizer.step()
"""
_TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node={world_size}", "script.py")
_MEASURED: dict[str, tuple[str, ...]] = {
    "train": ("train", *_SHORT),
    "train-ddp": ("train", "--world-size=2", "--workload=transformer", "--batch-size=4", *_SHORT),
    "train-fsdp": ("train", "--world-size=2", "--strategy=fsdp", *_SHORT),
    "train-zero1": ("train", "--world-size=2", "--strategy=zero1", *_SHORT),
    "train-pipeline": ("train", "--world-size=2", "--strategy=pipeline", *_SHORT),
    "train-scratch": ("train", "--world-size=2", "--strategy=scratch_ddp", *_SHORT),
    "train-epochs": ("train", "--epochs=2", "--steps-per-epoch=12", "--repeats=2"),
    "train-text": (
        "train",
        "--data=imdb",
        "--data-dir=texts",
        "--workload=transformer",
        "--batch-size=4",
        *_SHORT,
    ),
    "train-profile": ("train", "--world-size=2", "--profile", *_SHORT),
    "train-custom": ("train", "--workload=own_model.py:build", "--batch-size=16,64", *_SHORT),
    "train-command": ("train", *_SHORT, "--", "python", "script.py"),
    "train-failed": ("train", "--world-size=2", *_SHORT),
    "train-budget": ("train", "--batch-size=16,32,64,128", "--budget=16s", *_SHORT),
    "scale": (
        "scale",
        "--workload=cnn",
        "--world-size=1,2",
        "--batch-size=8",
        "--window=0.3s",
        "--repeats=3",
    ),
    "scale-link": ("scale", "--link=1gbit", "--world-size=1,2", "--batch-size=32,256", *_SHORT),
    "scale-strong": (
        "scale",
        "--world-size=1,2",
        "--global-batch-size=64",
        "--workload=own_model.py:build",
        *_SHORT,
    ),
    "scale-short": ("scale", "--no-waterfall", "--world-size=1,2,4", "--batch-size=64", *_SHORT),
    "scale-fsdp": ("scale", "--strategy=fsdp", "--world-size=1,2", "--batch-size=64", *_SHORT),
    "scale-command": ("scale", "--world-size=1,2", *_SHORT, "--", *_TORCHRUN),
    "tune": ("tune", "--budget=45s", "--world-size=2", "--batch-size=32"),
    "tune-loss": ("tune", "--budget=40s", "--levers=precision,fused_optimizer", "--verify-loss=20"),
    "memory": ("memory", "--batch-size=8,64"),
    "comm": ("comm", "--max-bytes=4M", "--repeats=2"),
    "comm-pairs": ("comm", "--pairs", "--world-size=4", "--max-bytes=64K", "--repeats=1"),
    "run": ("run", "--budget=60s"),
}
_READING: dict[str, tuple[str, ...]] = {
    "explain": ("explain", "{run}", "-v"),
    "predict": ("predict", "{run}", "-v", "--json", "{out}/predict.json"),
    "what-if": ("predict", "{run}", "--network", "nvlink4", "--gpus-per-node", "8", "--what-if"),
    "report": ("report", "{run}", "--out", "{out}/report", "--format", "html,csv,tex,md,txt,json"),
    "again": ("resume", "{run}", "--dry-run", "--trust", "--repeats", "9"),
}
_PAIRS = (
    ("train", "train-epochs"),
    ("scale-link", "scale-strong"),
    ("train-ddp", "train-fsdp", "train-zero1"),
    ("gpu-train", "gpu-train-resnet"),
)
_CHANGING = (  # what two calls of the same code print differently
    (re.compile(r"scalescope-[a-z0-9_]{8}"), "TEMPORARY"),
    (re.compile(r"\babout \d[^;,)]*? (?:and \d+ s )?(?=\(|for|;)"), "about TIME "),
)


def make(runs: Path) -> None:
    """Measure and simulate the runs."""
    runs.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "examples" / "own_model.py", runs)
    (runs / "script.py").write_text(_SCRIPT)
    (runs / "texts").mkdir(exist_ok=True)
    for name in ("train.csv", "test.csv"):
        rows = (
            f"a film as good as number {number} can be,{('negative', 'positive')[number % 2]}"
            for number in range(400)
        )
        (runs / "texts" / name).write_text("\n".join(("review,sentiment", *rows)))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # with torchrun
    for name, (verb, *flags) in _MEASURED.items():
        if (runs / name).exists():
            continue
        fault = {"SCALESCOPE_FAULT": "raise@1:5"} if name.endswith("-failed") else {}
        words = [verb, f"--output-dir={name}", *flags]
        done = subprocess.run(
            [sys.executable, "-m", "scalescope", *words],
            cwd=runs,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": path, **fault},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        print(f"{name}: {done.returncode} {done.stderr.strip().splitlines()[-1:]}", flush=True)
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from tests.builders.runs import make_failures, make_runs

    if not (runs / "simulated").exists():
        make_runs(runs / "simulated")
        make_failures(runs / "simulated" / "failures")


def freeze(runs: Path, out: Path) -> None:
    """Run every reading verb over every run, and keep what it printed and wrote."""
    sys.path.insert(0, str(ROOT / "src"))
    from scalescope.results.run_folder import find_runs

    own = Path(tempfile.mkdtemp())  # predictions of earlier freezes must not count
    os.environ |= {"COLUMNS": "120", "TZ": "UTC", "SCALESCOPE_LEDGER": str(own / "ledger.jsonl")}
    os.environ |= {"XDG_STATE_HOME": str(own), "XDG_DATA_HOME": str(own)}
    shutil.rmtree(out, ignore_errors=True)
    out = out.resolve()
    with contextlib.chdir(runs):
        found = sorted(find_runs(Path()))
        for run in found:
            name = "-".join(run.parts)
            folder = out / name
            folder.mkdir(parents=True)
            for verb, words in _READING.items():
                given = [word.format(run=run, out=folder) for word in words]
                (folder / f"{verb}.txt").write_text(_unchanging(_printed(given), out))
        for names in _PAIRS:
            if all(Path(name).is_dir() for name in names):
                text = _printed(["compare", *names, "-v", "--any-hardware", "--json", f"{out}/pair.json"])
                (out / f"compare-{'-'.join(names)}.txt").write_text(_unchanging(text, out))
        (out / "list.txt").write_text(_unchanging(_printed(["list", ".", "--json"]), out))
    print(f"{len(found)} runs frozen in {out}")


def _printed(words: list[str]) -> str:
    """Everything that a command prints, and its exit code."""
    from scalescope.cli.app import main

    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream), _like_a_process():
        try:
            main(words)
        except SystemExit as leaving:
            return f"{stream.getvalue()}exit code {leaving.code}\n"
    raise AssertionError("a command always leaves")


@contextlib.contextmanager
def _like_a_process() -> Iterator[None]:
    """What a command changes of its process is put back."""
    before = Path.cwd()
    try:
        yield
    finally:
        os.chdir(before)


def _unchanging(text: str, out: Path) -> str:
    text = text.replace(str(out), "OUT").replace(str(Path.cwd()), "RUNS")
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=("make", "freeze"))
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    given = parser.parse_args()
    if given.step == "make":
        make(given.runs)
    elif given.out is None:
        parser.error("freeze needs OUT")
    else:
        freeze(given.runs, given.out)


if __name__ == "__main__":
    main()
