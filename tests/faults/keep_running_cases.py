"""Trainings of 250 steps that are measured with --keep-running while something of ours goes wrong.

`python -m tests.faults.keep_running_cases` runs all of them and prints a row for each: a training passes if
it reaches its last step, saves, and its command line says so or has been killed. Tests run some of them.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.gloo.real_runs import reset_signal_handlers

ROOT = Path(__file__).resolve().parents[2]
STEPS = 250
SCRIPT = """
import os, pathlib, resource, shutil, signal, sys, time, torch
fault, output, saved = sys.argv[1:4]
run = pathlib.Path(output)
real_sleep = time.sleep
job = os.environ["SCALESCOPE_ATTACH"]
asked = []

def save_slowly(number, frame):
    asked.append(number)
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        real_sleep(0.1)
    pathlib.Path(saved + ".asked").write_text(str(number))

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, save_slowly)

def replace_run_folder():
    shutil.rmtree(run)
    run.write_text("a file")

def fill_disk():
    with open(run / "filler", "wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass

def limit(kind, value):
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

def freeze_time():
    for name in ("time", "monotonic", "perf_counter"):
        now = getattr(time, name)()
        setattr(time, name, lambda now=now: now)
    time.perf_counter_ns = lambda: 1

class Hostile(dict):
    def __getattribute__(self, name):
        raise RuntimeError("hostile " + name)
    def __len__(self):
        raise RuntimeError("hostile length")
    __iter__ = keys = values = items = __getitem__ = __len__

def hand_out(batch):
    return batch

def memory_now():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

def close_streams():
    os.close(1); os.close(2)

def block_rank_files():
    for file in (run / "ranks").iterdir():
        file.unlink(); file.mkdir()

faults = {
    "run folder removed": lambda: shutil.rmtree(run),
    "run folder replaced by a file": replace_run_folder,
    "rank file replaced by a folder": block_rank_files,
    "disk full": fill_disk,
    "setuid": lambda: os.setuid(65534),
    "descriptors closed": lambda: os.closerange(3, 1024),
    "no descriptors left": lambda: limit(resource.RLIMIT_NOFILE, 3),
    "files may not grow": lambda: limit(resource.RLIMIT_FSIZE, 0),
    "memory limit": lambda: limit(resource.RLIMIT_AS, memory_now() + (1 << 20)),
    "launch folder removed": lambda: shutil.rmtree(os.path.dirname(job)),
    "clocks frozen": freeze_time,
    "working folder removed": lambda: (os.mkdir("gone"), os.chdir("gone"), os.rmdir("../gone")),
    "output closed": close_streams,
}
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
data = torch.randn(8, 16)
for step in range(250):
    if step == 20 and fault in faults:
        faults[fault]()
    if step == 30 and fault not in faults:
        pathlib.Path(saved + ".step").write_text("30")
    if fault == "hostile batch":
        next(iter(torch.utils.data.DataLoader([Hostile()], batch_size=None, collate_fn=hand_out)), None)
    loss = model(data).square().mean()
    optimizers[0].zero_grad()
    loss.backward()
    optimizers[(step * step // 7) % 2 if fault == "optimizers in no order" else 0].step()
    real_sleep(0.004)
limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
limit(resource.RLIMIT_NOFILE, 256)
limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
torch.save(model.state_dict(), saved)
"""


@dataclass(frozen=True)
class Case:
    """What goes wrong."""

    fault: str
    signals: tuple[int, ...] = ()  # sent to the command line in the middle of the training
    small_disk: bool = False  # the run folder lies on a file system of 2 MiB
    needs_root: bool = False


CASES = (
    Case("none"),
    Case("run folder removed"),
    Case("run folder replaced by a file"),
    Case("rank file replaced by a folder"),
    Case("disk full", small_disk=True, needs_root=True),
    Case("setuid", needs_root=True),
    Case("descriptors closed"),
    Case("no descriptors left"),
    Case("files may not grow"),
    Case("memory limit"),
    Case("launch folder removed"),
    Case("clocks frozen"),
    Case("working folder removed"),
    Case("output closed"),
    Case("hostile batch"),
    Case("optimizers in no order"),
    Case("SIGKILL of scalescope", (signal.SIGKILL,)),
    Case("SIGTERM", (signal.SIGTERM,)),
    Case("SIGTERM twice", (signal.SIGTERM, signal.SIGTERM)),
    Case("SIGHUP", (signal.SIGHUP,)),
    Case("SIGUSR1", (signal.SIGUSR1,)),
    Case("Ctrl-C", (signal.SIGINT,)),
)


@dataclass(frozen=True)
class Ended:
    """What became of a training."""

    saved: bool
    handled: bool  # its own handler of a signal ran to its end
    code: int | None  # of the command line
    output: str


def run(case: Case, folder: Path, limit_s: float = 300.0) -> Ended:
    """Measure a training with this fault, and wait for its own end."""
    script, saved, output = folder / "train.py", folder / "saved.pt", folder / "disk" / "run"
    script.write_text(SCRIPT)
    folder.chmod(0o777)  # for a training that gives up being root
    output.parent.mkdir()
    if case.small_disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", output.parent], check=True)
    try:
        words = [sys.executable, "-m", "scalescope", "train", "--keep-running", "--window", "0.3s"]
        words += ["--device", "cpu", "--output-dir", str(output), "--", sys.executable]
        words += [str(script), case.fault, str(output), str(saved)]
        log = folder / "output.txt"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                words, cwd=folder, stdout=stream, stderr=subprocess.STDOUT, preexec_fn=reset_signal_handlers
            )
        code = _watch(process, case, saved, limit_s)
        deadline = time.monotonic() + 30.0
        while not saved.exists() and case.signals and time.monotonic() < deadline:
            time.sleep(0.1)  # a training outlives a killed command line
        time.sleep(0.2)
        asked = Path(f"{saved}.asked").exists()
        return Ended(saved.exists(), asked, code, log.read_text(errors="replace"))
    finally:
        if case.small_disk:
            subprocess.run(["umount", "--lazy", output.parent], check=False)


def _watch(process: "subprocess.Popen[bytes]", case: Case, saved: Path, limit_s: float) -> int | None:
    deadline = time.monotonic() + limit_s
    sent = False
    while process.poll() is None and time.monotonic() < deadline:
        if case.signals and not sent and Path(f"{saved}.step").exists():
            sent = True
            for number in case.signals:
                process.send_signal(number)
                time.sleep(0.3)
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        process.wait()
        return None
    return process.returncode


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    chosen = sys.argv[1:]
    print("| fault | reached its last step and saved | code | last line |\n|---|---|---|---|")
    for case in CASES:
        if (chosen and case.fault not in chosen) or (case.needs_root and os.geteuid() != 0):
            continue
        folder = Path(tempfile.mkdtemp())
        ended = run(case, folder)
        lines = ended.output.strip().splitlines()
        handled = " (its handler ended)" if ended.handled else ""
        print(
            f"| {case.fault} | {ended.saved}{handled} | {ended.code} | {lines[-1][:140] if lines else ''} |"
        )
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
