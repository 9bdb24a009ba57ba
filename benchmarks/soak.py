"""A soak: random short sweeps while their processes are killed or stopped, and disks fill and empty.

    python benchmarks/soak.py [--minutes 10] [--seed 1] [--out FOLDER]

Ranks, zygotes, guards, command lines, makers of namespaces and training commands get SIGKILL or SIGSTOP,
about one of them per second; killed command lines are resumed. /dev/shm and the disk with the runs are small
file systems in a private mount namespace, which are full now and then. Afterwards every record must parse,
every launch that was finished must be there exactly once, memory and descriptors of a command line that ran
all the time must not have grown, and nothing may run or lie around. Exit code 1 if anything of that does not
hold. Requires Linux and root.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from soaking.checks import (
    Sample,
    duplicated,
    growth,
    half_written,
    left_lying,
    lost,
    stored_launches,
    table,
    unreadable_files,
)
from soaking.processes import MarkedProcess, by_target, marked_processes, sample
from soaking.sweep import Sweep
from soaking.sweeps import long_sweep, random_sweep, write_script

from scalescope.results.run_folder import TRIALS, RunFolder

_SPARED = "steady"  # a command line that is to last, and the disk of its run, which is never full
_INSIDE = "SCALESCOPE_SOAK_INSIDE"
_SHARED_MEMORY = Path("/dev/shm")
_SIZES = {"/dev/shm": "64m", "runs": "192m", _SPARED: "192m", "tmp": "256m"}
_SLOTS = 2  # sweeps at a time whose command lines are killed too
_TURN_S = 0.1
_KILL_EVERY_S = (0.2, 0.9)
_FILL_EVERY_S, _FULL_S = 25.0, 3.0
_MOST_RESUMES = 8
_START_S = 30.0  # of a command line, in which it is still growing
_MOST_GROWTH_BYTES = 4 << 20  # of memory: what allocators and caches of Python vary by
_RESULT_BYTES = 32 << 10  # a run reads its results to answer on the way: so much for each
_GONE_WITHIN_S = 15.0
# Weights of victims; a zygote or a command line that is killed costs seconds of importing torch.
# A maker of namespaces, which lives for a moment only, comes first where there is one.
_PLANS = (
    *(
        (("kill", "rank"), 70),
        (("kill", "zygote"), 5),
        (("kill", "guard"), 4),
        (("kill", "command line"), 12),
    ),
    *((("kill", "command"), 3), (("stop", "rank"), 3), (("stop", "zygote"), 1), (("stop", "guard"), 1)),
    (("stop", "command line"), 2),
)
_WAIT_S = 5.0  # for a process of the kind that is to be hurt next
_STOPPED_S = 1.0  # how long a command line or guard is stopped; nobody ends it otherwise
# Codes of runs that met a fault: launches failed, hung or were invalid; no room; network not built.
_EXPECTED = {0, 3, 4, 5, 6, 7, -signal.SIGKILL, 128 + signal.SIGINT, 128 + signal.SIGTERM}


class Soak:
    """Starts sweeps, hurts them, and counts."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out = out
        self.runs, self.temporary = out / "runs", out / "tmp"
        self.choice = random.Random(seed)
        self.began = time.monotonic()
        self.token = f"{os.getpid()}-{seed}"
        self.environment = {**os.environ, "TMPDIR": str(self.temporary)}
        self.sweeps: list[Sweep] = []
        self.kills: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.fills = 0
        self.left_running: list[MarkedProcess] = []
        self.codes: Counter[int] = Counter()
        self.samples: dict[int, list[Sample]] = {}
        self.killed_ranks: list[int] = []
        self.began_at = time.time()  # as files have it
        self._continue_at: list[tuple[float, int]] = []
        self._empty_at: float | None = None
        self._plan_next(self.began)
        write_script(out)

    def run(self, minutes: float) -> None:
        """Hurt sweeps for a while, then end them."""
        end = self.began + 60.0 * minutes
        self._steady = self._new_sweep(_SPARED)
        slots: list[Sweep | None] = [None] * _SLOTS
        kill_at = sample_at = self.began + 5.0
        fill_at = self.began + _FILL_EVERY_S
        while (now := time.monotonic()) < end:
            self._keep_busy(slots)
            if now >= sample_at:
                self._sample(now)
                sample_at = now + 1.0
            if now >= fill_at:
                self._fill(now)
                fill_at = now + _FILL_EVERY_S
            if now >= kill_at and self._hurt(now):
                kill_at = now + self.choice.uniform(*_KILL_EVERY_S)
            self._recover(now)
            time.sleep(_TURN_S)
        self._end()

    def _new_sweep(self, kind: str = "sweep") -> Sweep:
        number = len(self.sweeps)
        folder = (self.out / _SPARED if kind == _SPARED else self.runs) / f"run{number}"
        words = long_sweep(folder) if kind == _SPARED else random_sweep(self.choice, folder)
        sweep = Sweep(words=words, folder=folder, mark=f"{self.token}-{kind}-{number}")
        self.sweeps.append(sweep)
        sweep.start(self.out, self.environment)
        return sweep

    def _keep_busy(self, slots: list[Sweep | None]) -> None:
        """Resume what was killed, replace what has ended."""
        if self._has_ended(self._steady):
            if self._is_worn(self._steady):
                self._steady = self._new_sweep(_SPARED)
            else:
                self._steady.start(self.out, self.environment)
        for number, sweep in enumerate(slots):
            if sweep is None:
                slots[number] = self._new_sweep()
            elif self._has_ended(sweep):
                done = sweep.process is not None and sweep.process.returncode == 0
                if done or sweep.starts > _MOST_RESUMES:
                    slots[number] = self._new_sweep()
                else:
                    sweep.start(self.out, self.environment)

    def _is_worn(self, sweep: Sweep) -> bool:
        """Whether all of a long sweep was given up on."""
        return sweep.process is not None and sweep.process.returncode in (0, 4, 5)

    def _has_ended(self, sweep: Sweep) -> bool:
        """Whether its command line has ended; then nothing of it may run on."""
        assert sweep.process is not None
        code = sweep.process.poll()
        if code is None:
            return False
        sweep.note_finished()
        self.codes[code] += 1
        self.left_running += self._left_of(sweep.mark)
        return True

    def _left_of(self, mark: str) -> list[MarkedProcess]:
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (left := marked_processes(mark)) and (now := time.monotonic()) < deadline:
            self._recover(now)  # a guard that is stopped meanwhile ends nothing
            time.sleep(0.02)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return left

    def _hurt(self, now: float) -> bool:
        """Kill or stop a process; False where there is none."""
        command_lines = {sweep.process.pid for sweep in self.sweeps if sweep.process is not None}
        processes = [process for process in marked_processes(self.token) if not self._is_spared(process)]
        targets = by_target(processes, command_lines)
        action, name = self._plan if not targets.get("holder") else (self._plan[0], "holder")
        if not targets.get(name):
            if now > self._planned_at + _WAIT_S:
                self._plan_next(now)
            return False
        victim = self.choice.choice(targets[name])
        sweep = next(sweep for sweep in self.sweeps if sweep.mark == victim.mark)
        sweep.note_finished()
        if name == "rank" and not sweep.may_lose_rank(now):
            return False
        self._plan_next(now)
        try:
            os.kill(victim.pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            return False
        (self.kills if action == "kill" else self.stops)[name] += 1
        if name == "rank":
            self.killed_ranks.append(victim.pid)
        if action == "stop" and name in ("command line", "guard"):
            self._continue_at.append((now + _STOPPED_S, victim.pid))
        return True

    def _is_spared(self, process: MarkedProcess) -> bool:
        """The command line that is to show whether it grows; what it starts, only until it has begun."""
        if process.mark != self._steady.mark:
            return False
        is_command_line = self._steady.process is not None and process.pid == self._steady.process.pid
        return is_command_line or not (self._steady.folder / TRIALS).exists()

    def _plan_next(self, now: float) -> None:
        """Choose what is hurt next before looking what is there: else all that starts would be killed."""
        ((self._plan, _),) = self.choice.choices(_PLANS, [weight for _, weight in _PLANS])
        self._planned_at = now

    def _fill(self, now: float) -> None:
        """Leave no room in shared memory or on the disk of the runs, for a while."""
        directory = self.choice.choice((_SHARED_MEMORY, self.runs))
        self.fills += 1
        self._empty_at = now + _FULL_S
        with contextlib.suppress(OSError), (directory / ".filler").open("wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    def _recover(self, now: float) -> None:
        """Give room back, and let processes go on that were stopped for a while."""
        if self._empty_at is not None and now >= self._empty_at:
            self._empty_at = None
            for directory in (_SHARED_MEMORY, self.runs):
                (directory / ".filler").unlink(missing_ok=True)
        for at, pid in [entry for entry in self._continue_at if now >= entry[0]]:
            self._continue_at.remove((at, pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _sample(self, now: float) -> None:
        process = self._steady.process
        taken = None if process is None else sample(process.pid, now - self.began)
        if process is not None and taken is not None:
            self.samples.setdefault(process.pid, []).append(taken)

    def _end(self) -> None:
        """Let everything go on, ask it to end, and look what remains."""
        self._recover(float("inf"))
        for sweep in self.sweeps:
            if sweep.process is not None and sweep.process.poll() is None:
                sweep.process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    sweep.process.wait(60.0)
                self._has_ended(sweep)
        self.left_running += self._left_of(self.token)

    def _is_new(self, path: Path) -> bool:
        """Whether a file is of this soak: processes of earlier days may have had the same ids."""
        return path.exists() and path.stat().st_mtime >= self.began_at

    def result(self) -> tuple[dict[str, object], list[str]]:
        """The rows of the table, and what does not hold."""
        missing, twice, broken, lying = [], [], [], []
        launches = kept = 0
        for sweep in self.sweeps:
            if not sweep.folder.is_dir():
                continue
            RunFolder.open(sweep.folder, resume=True).close()  # as any later command would
            path = sweep.folder / TRIALS
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            stored = stored_launches(text)
            launches += len(stored.finished)
            kept = max(kept, len(stored.finished) if sweep.folder.parent.name == _SPARED else 0)
            missing += [f"{sweep.folder.name}: {key}" for key in lost(sweep.finished, stored.finished)]
            twice += [f"{sweep.folder.name}: {key}" for key in duplicated(stored.finished)]
            broken += [f"{sweep.folder.name}: {line[:80]}" for line in stored.unreadable]
            broken += map(str, unreadable_files(sweep.folder))
            lying += half_written(sweep.folder)
        lying += left_lying((_SHARED_MEMORY, self.temporary))
        lying += [path for pid in self.killed_ranks if self._is_new(path := Path(f"/tmp/perf-{pid}.map"))]
        grown = [grew for taken in self.samples.values() if (grew := growth(taken, _START_S)) is not None]
        memory = max((grew.resident_bytes for grew in grown), default=0)
        descriptors = max((grew.descriptors for grew in grown), default=0)
        too_short = "" if grown else "; no command line lived long enough to tell"
        crashed = {code: count for code, count in self.codes.items() if code not in _EXPECTED}
        tracebacks = [
            path for path in self.out.glob("*.log") if "Traceback" in path.read_text(errors="replace")
        ]
        wrong = {
            "lost": missing,
            "duplicated": twice,
            "unreadable": broken,
            "left running": [
                f"{process.pid} {' '.join(process.words)[:90]}" for process in self.left_running
            ],
            "left lying": lying,
            "unexpected exit codes": [f"{code}: {count} times" for code, count in crashed.items()],
            "tracebacks": tracebacks,
        }
        rows: dict[str, object] = {
            "kills": f"{self.kills.total()}  ({_counts(self.kills)})",
            "stops": f"{self.stops.total()}  ({_counts(self.stops)})",
            "times full": self.fills,
            "sweeps, starts": f"{len(self.sweeps)}, {sum(sweep.starts for sweep in self.sweeps)}",
            "launches finished": launches,
            **{name: len(cases) for name, cases in wrong.items()},
            "growth of memory": f"{memory / (1 << 20):.1f} MiB, with {kept} launches{too_short}",
            "growth of descriptors": descriptors,
        }
        problems = [f"{name}: {case}" for name, cases in wrong.items() for case in cases]
        if memory > _MOST_GROWTH_BYTES + kept * _RESULT_BYTES or descriptors > 0:
            problems.append("the command line that was spared has grown")
        return rows, problems


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Hurt random sweeps for a while; nothing may be lost or left."
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep runs and logs there; by default they are removed")
    options = parser.parse_args(argv)
    if sys.platform != "linux" or os.geteuid() != 0:
        print("soak.py requires Linux and root: it mounts small file systems of its own", file=sys.stderr)
        return 3
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    if _INSIDE not in os.environ:  # again, where mounts are seen by nobody else
        os.environ[_INSIDE] = "1"
        words = [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv)]
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *words])
    with _folder(options.out) as out:
        for name, size in _SIZES.items():
            directory = Path(name) if name.startswith("/") else out / name
            directory.mkdir(exist_ok=True)
            words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
            subprocess.run(words, check=True)
        soak = Soak(out, options.seed)
        try:
            soak.run(options.minutes)
        finally:
            soak.left_running += soak._left_of(soak.token)
        rows, problems = soak.result()
        if options.out is not None:
            shutil.copytree(out / "runs", out / "kept", dirs_exist_ok=True)
        print(table(rows))
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


@contextlib.contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    if asked is not None:
        asked.mkdir(parents=True, exist_ok=True)
        yield asked.resolve()
        return
    path = Path(tempfile.mkdtemp(prefix="scalescope-soak-"))
    try:
        yield path
    finally:
        for name in ("runs", _SPARED, "tmp"):
            subprocess.run(["umount", str(path / name)], check=False)
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
