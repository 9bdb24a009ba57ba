"""Recording: every case becomes a folder with case.json and a trace per rank."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracing.cases import SCALESCOPE, Case

RANK = Path(__file__).resolve().parent / "rank.py"
RECORD, TRACES = "case.json", "traces"
_VARIABLES = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "KINETO_LOG_LEVEL": "99",
}
_PACK_BYTES, _PACKS = 15 << 20, 4  # what comes back from the GPU's machine
_SPARES = 4  # processes that load torch for the next cases, where there are cores for them
_JOB = '''"""The job of a case."""

import sys

sys.path.insert(0, {folder!r})

from tracing.causes import Place, job_of


def build(rank, world_size, device):
    place = Place(rank=rank, ranks=world_size, device=device)
    return job_of({job!r}, {arguments!r}, place)
'''

Row = dict[str, Any]


class Failed(Exception):
    """A case could not be recorded."""


# --- recording ---


class Recorder:
    """Records cases below a folder; a GPU stays split while cases need as many parts."""

    def __init__(self, out: Path, device: str | None) -> None:
        self.out, self.device = out, device
        self._split: Any = None
        self._parts = 0
        self._spare: list[Worker] = []

    def close(self) -> None:
        for worker in self._spare:
            worker.end()
        self._spare.clear()
        self._join()

    def _join(self) -> None:
        """The GPU is whole again."""
        if self._split is not None:
            self._split.close()
        self._split, self._parts = None, 0

    def record(self, case: Case) -> Row:
        """Record a case; nothing of it is left if that fails."""
        folder = self.out / case.folder
        if folder.exists():
            shutil.rmtree(folder)
        (folder / TRACES).mkdir(parents=True)
        try:
            times = (
                self._by_scalescope(case, folder) if case.recorder == SCALESCOPE else self._own(case, folder)
            )
            if len(traces := list((folder / TRACES).iterdir())) != case.ranks:
                raise Failed(f"{len(traces)} traces of {case.ranks} ranks")
        except BaseException:
            shutil.rmtree(folder)
            raise
        row = {**case.record(), "folder": case.folder, **times}
        (folder / RECORD).write_text(json.dumps(row, indent=1), encoding="utf-8")  # last: only then complete
        return row

    def _own(self, case: Case, folder: Path) -> Row:
        """Every rank is a process of the benchmark's own."""
        workers = [self._worker() for _ in range(case.ranks)]
        try:
            for rank, worker in enumerate(workers):
                orders = {
                    "case": case.record(),
                    "rank": rank,
                    "store": str(folder / "store"),
                    "folder": str(folder),
                    "environment": self._environment(case, rank),
                }
                worker.order(orders)
            ended = _ended(
                [worker.process for worker in workers],
                limit_s=60.0 if case.device == "cuda" else 70.0 + 12.0 * case.ranks,
            )
            if ended is not None:
                raise Failed(f"rank {ended}: {_last_lines(workers[ended].said())}")
        finally:
            for worker in workers:
                worker.end()
            self._keep_spare()
        files = [folder / f"times{rank}.json" for rank in range(case.ranks)]
        times = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        for file in (*files, *folder.glob("store*")):
            file.unlink()
        return {name: max(rank_times[name] for rank_times in times) for name in times[0]}

    def _worker(self) -> "Worker":
        return self._spare.pop(0) if self._spare else Worker(spare=False)

    def _keep_spare(self) -> None:
        """On a machine with a GPU there are cores to load torch for the next case meanwhile."""
        while len(self._spare) < (_SPARES if self.device == "cuda" else 0):
            self._spare.append(Worker(spare=True))

    def _environment(self, case: Case, rank: int) -> dict[str, str]:
        if case.device != "cuda" or case.ranks == 1:
            return {}
        if self._parts != case.ranks:
            from scalescope.launch.local.emulation import SplitGpu

            self._join()
            self._split, self._parts = SplitGpu(case.ranks), case.ranks
        share = case.gpu_shares.get(rank, 1.0) * 100.0 / case.ranks
        return {**self._split.environment_of(rank), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{share:g}"}

    def _by_scalescope(self, case: Case, folder: Path) -> Row:
        """`scalescope train --profile` on the job of the case."""
        if case.device == "cuda":
            self._join()  # it splits the GPU itself
        batch = case.arguments.get("batch", case.batch)
        words = [f"--workload={written_job(case.job, case.arguments, folder)}", f"--batch-size={batch}"]
        run = profiled(words, case.ranks, case.device, folder, steps=case.steps, bucket_mb=case.bucket_mb)
        for trace in (run / TRACES).glob("*.gz"):
            shutil.move(trace, folder / TRACES)
        step_s = results_of(run)["training"][0]["step_time_s"]["mean"]
        shutil.rmtree(run)
        (folder / "job.py").unlink()
        return {"step_s": step_s}


class Worker:
    """A process that is going to be a rank; a spare one loads torch before it is needed."""

    def __init__(self, *, spare: bool) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(RANK), *(["--spare"] if spare else [])],
            env={**os.environ, **_VARIABLES},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
        )

    def order(self, orders: Row) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed already, and its log says why
            self.process.stdin.write(json.dumps(orders).encode() + b"\n")
            self.process.stdin.flush()

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()


def written_job(job: str, arguments: Mapping[str, Any], folder: Path) -> str:
    """The reference of a file with the job of a case, as --workload takes it."""
    text = _JOB.format(folder=str(RANK.parents[1]), job=job, arguments=dict(arguments))
    (folder / "job.py").write_text(text, encoding="utf-8")
    return f"{folder / 'job.py'}:build"


def profiled(
    words: Sequence[str],
    ranks: int,
    device: str,
    folder: Path,
    *,
    steps: int = 6,
    bucket_mb: float | None = None,
) -> Path:
    """The run folder of a short `train --profile`."""
    more = [] if bucket_mb is None else [f"--bucket-cap-mb={bucket_mb}"]
    more += placed(ranks, device)
    run = folder / "run"
    scalescope(
        ["train", *words, f"--world-size={ranks}", *more, "--profile", f"--profile-steps={steps}",
         "--no-breakdown", "--no-repeat-disturbed", "--window=0.5s", "--min-steps=5", f"--output-dir={run}"],
        limit_s=90.0 if device == "cuda" else 120.0 + 15.0 * ranks,
    )  # fmt: skip
    return run


def placed(ranks: int, device: str) -> list[str]:
    if device != "cuda":
        return ["--device=cpu", "--threads-per-rank=1"]
    return ["--device=cuda", *([f"--split-gpu={ranks}"] if ranks > 1 else [])]


def scalescope(words: Sequence[str], *, limit_s: float) -> str:
    """Run a verb; returns what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scalescope", *words],
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"scalescope {words[0]} did not end within {limit_s:g} s") from None
    if done.returncode:
        raise Failed(
            f"scalescope {words[0]} ended with {done.returncode}: {_last_lines(done.stdout + done.stderr)}"
        )
    return done.stdout


def results_of(run: Path) -> Row:
    results: Row = json.loads((run / "results.json").read_text(encoding="utf-8"))["results"]
    return results


def _ended(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> int | None:
    """Wait for all ranks; returns the first one that failed, or that has not ended by then."""
    deadline = time.monotonic() + limit_s
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            return failed[0]
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            return codes.index(None)
        time.sleep(0.05)


def _last_lines(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-6:])[-900:] or "no message"


def is_recorded(case: Case, out: Path) -> bool:
    """Whether the case, as it is now, has been recorded."""
    try:
        stored = json.loads((out / case.folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    wanted = json.loads(json.dumps(case.record()))
    return bool({name: stored.get(name) for name in wanted} == wanted)


def record(cases: Sequence[Case], out: Path, device: str | None, minutes: float) -> None:
    """Record what is missing, until the time is over."""
    ends_s = time.monotonic() + 60.0 * minutes
    recorder = Recorder(out, device)
    failed = []
    missing = [case for case in cases if not is_recorded(case, out)]
    try:
        for number, case in enumerate(missing):
            needs_s = 30.0 if case.recorder == SCALESCOPE else 15.0
            if time.monotonic() + needs_s > ends_s:
                print(f"no time left for {len(missing) - number} cases; the same command continues")
                break
            began = time.monotonic()
            try:
                row = recorder.record(case)
            except Failed as error:
                failed.append(case.name)
                print(f"{time.monotonic() - began:4.0f} s  FAILED  {case.name}: {error}", flush=True)
                continue
            without = f", {row['without_s'] * 1e3:.1f} without" if row.get("without_s") else ""
            print(
                f"{time.monotonic() - began:4.0f} s  {case.name}: {row['step_s'] * 1e3:.1f} ms{without}",
                flush=True,
            )
    finally:
        recorder.close()
    done = sum(is_recorded(case, out) for case in cases)
    print(f"{done} of {len(cases)} cases are recorded in {out}; {len(failed)} failed")


def pack(cases: Iterable[Case], out: Path, folder: Path) -> None:
    """Archives of all recorded cases, none larger than what comes back from the GPU's machine."""
    folder.mkdir(parents=True, exist_ok=True)
    bins: list[tuple[int, list[str]]] = []
    for case in cases:
        if not is_recorded(case, out):
            continue
        size = sum(file.stat().st_size for file in (out / case.folder).rglob("*") if file.is_file()) + (
            64 << 10
        )
        place = next((place for place, (full, _) in enumerate(bins) if full + size <= _PACK_BYTES), None)
        if place is not None:
            bins[place] = (bins[place][0] + size, [*bins[place][1], case.folder])
        elif len(bins) < _PACKS and size <= _PACK_BYTES:
            bins.append((size, [case.folder]))
        else:
            print(f"not packed, {size >> 20} MB: {case.name}")
    for number, (size, names) in enumerate(bins):
        with tarfile.open(folder / f"traces-{number}.tar", "w") as archive:
            for name in names:
                archive.add(out / name, arcname=name)
        print(f"traces-{number}.tar: {len(names)} cases, {size >> 10} KB")


def unpack(files: Iterable[Path], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file in files:
        with tarfile.open(file) as archive:
            archive.extractall(out, filter="data")
            print(f"{file.name}: {len(archive.getnames())} files")
