"""Zygote: a process that has imported torch and forks ranks, which saves the import per launch.

It never uses CUDA or threads, because its forked children could not use them then. It reads one JSON
request per line from standard input and answers on the pipe that was standard output:
  {"fork": RANKJOB, "env": {...}, "log": PATH} -> {"pid": N}, later {"exited": N, "status": S}
  {"probe": true} -> {"machine": {...}} or {"error": "..."}
"""

import gc
import json
import os
import select
import signal
from typing import Any

from scalescope.parent_death import die_with_parent
from scalescope.results.ranks import RankJob
from scalescope.worker.process.main import enable_stack_dumps, ignore_preemption_warning, leave_process


def main() -> None:
    die_with_parent(os.getppid())
    ignore_preemption_warning()
    answers = os.dup(1)
    os.dup2(2, 1)  # what an import prints must not break the protocol
    try:
        preload()
    except Exception as error:  # a broken install may raise anything
        _answer(
            answers, {"error": f"torch cannot be imported ({error}); install 2.6 or newer: pip install torch"}
        )
        return
    _answer(answers, {"ready": True})
    serve(0, answers)
    os.kill(os.getppid(), signal.SIGCONT)  # a guard that was stopped must see the end too


def preload() -> None:
    """Import what every rank needs. DDP's constructor imports torch._dynamo, which takes 1.7 s per launch."""
    import torch
    import torch._dynamo
    import torch.distributed

    import scalescope.worker.benchmarks.train
    import scalescope.worker.process.rank
    import scalescope.worker.strategies.ddp  # noqa: F401

    assert not torch.cuda.is_initialized()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages


def serve(requests: int, answers: int) -> None:
    """Answer requests until the launcher closes the pipe."""
    children: dict[int, int] = {}  # pidfd -> pid
    buffer = b""
    while True:
        ready, _, _ = select.select([requests, *children], [], [])
        for descriptor in ready:
            if descriptor in children:
                pid = children.pop(descriptor)
                os.close(descriptor)
                _, status = os.waitpid(pid, 0)
                _answer(answers, {"exited": pid, "status": os.waitstatus_to_exitcode(status)})
                continue
            received = os.read(requests, 1 << 16)
            if not received:
                return
            *lines, buffer = (buffer + received).split(b"\n")
            for line in lines:
                _handle(json.loads(line), answers, children)


def _handle(request: dict[str, Any], answers: int, children: dict[int, int]) -> None:
    zygote = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        _answer(answers, {"error": f"a rank could not be started: {error.strerror}"})
        return
    if pid == 0:
        code = 1
        try:
            os.setsid()
            die_with_parent(zygote)
            code = _probe(answers) if "probe" in request else _become_rank(request, answers)
        finally:
            leave_process(code)
    if "probe" in request:
        _, status = os.waitpid(pid, 0)
        if status:
            _answer(answers, {"error": "torch crashed while probing this machine"})
        return
    children[os.pidfd_open(pid)] = pid
    _answer(answers, {"pid": pid})


def _become_rank(request: dict[str, Any], answers: int) -> int:
    os.close(answers)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # before the log is opened, which would take descriptor 0 if it were free
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["env"])
    enable_stack_dumps()
    from scalescope.worker.process.rank import run_rank

    return run_rank(RankJob.from_plain(request["fork"]))


def _probe(answers: int) -> int:
    from scalescope.worker.machine.probe import probe

    try:
        _answer(answers, {"machine": probe()})
    except Exception as error:
        _answer(answers, {"error": f"{type(error).__name__}: {error}"})
    return 0


def _answer(descriptor: int, answer: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
