"""Attached launcher: we are already a rank under torchrun, so the processes that are there do the trials.

Every rank's command line starts one worker child for the whole run. Rank 0's plans, measures and writes; the
others follow what its worker publishes in the store.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.measuring import Measuring
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome, Watcher, judge, record_from
from scalescope.launch.probing import machine_from_probe
from scalescope.launch.telemetry import Telemetry, gpus_of
from scalescope.results.files import write_atomically
from scalescope.results.run_folder import RunFolder

_MEMBERSHIP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Membership:
    """This process's place among the ranks somebody else started."""

    rank: int
    world_size: int


def membership(environment: Mapping[str, str]) -> Membership | None:
    """Our place under torchrun; None when nobody, or nobody completely, made us a rank."""
    if not all(environment.get(name) for name in _MEMBERSHIP):
        return None
    try:
        return Membership(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    except ValueError:
        raise BadInput("RANK and WORLD_SIZE are set but are no numbers; unset them") from None


def stray_variables(environment: Mapping[str, str]) -> list[str]:
    """Rank variables that are set without making us a rank: left over, and ignored."""
    if membership(environment) is not None:
        return []
    return [name for name in _MEMBERSHIP if name in environment]


def follow() -> int:
    """The whole life of a rank other than 0: its worker does what rank 0 publishes."""
    child = _start_worker(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return child.wait()


def _start_worker(stdin: int, stdout: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "scalescope.worker.attached", str(os.getpid())]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout)


class AttachedLauncher:
    """Rank 0's side: sends trials to its worker, which shares them with the other ranks' workers."""

    repeatable = False

    def __init__(self, place: Membership) -> None:
        self._place = place
        self._machine: Machine | None = None
        self._child = _start_worker(stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def machine(self) -> Machine:
        if self._machine is None:
            self._machine = machine_from_probe(self._ask({"probe": True})["machine"])
        return self._machine

    def launch(
        self, trial: Trial, launch: int, folder: RunFolder, limits: Measuring, watcher: Watcher
    ) -> Outcome:
        request = {
            "settings": dict(trial.settings),
            "launch": launch,
            "folder": str(folder.path.absolute()),
            "group_timeout_s": limits.init_timeout,
        }
        telemetry = Telemetry(gpus_of(trial, self.machine()))
        try:
            with telemetry.looking():
                answer = self._ask(request)
            outcome = self._outcome(trial, launch, folder, watcher, answer)
            return dataclasses.replace(outcome, telemetry=telemetry.of_window(outcome.records))
        finally:
            telemetry.close()

    def _outcome(
        self, trial: Trial, launch: int, folder: RunFolder, watcher: Watcher, answer: dict[str, Any]
    ) -> Outcome:
        """How the launch ended, from what the ranks answered."""
        raw: list[dict[str, Any]] = answer["records"]
        for one in raw:
            path = folder.rank_file(trial.trial_id, launch, one["rank"])
            write_atomically(path, json.dumps(one))
        records = [record_from(one) for one in raw]
        watcher.placed([one.placement for one in records], [one.host for one in records])
        failed = [one for one in raw if one["state"] != "done"]
        if failed:
            first = min(failed, key=lambda one: float(one["error"]["at_wall_s"]))
            step = first["error"]["step"]
            where = "" if step is None else f" at step {step}"
            bad_input = bool(first["error"].get("bad_input"))
            message = first["error"]["message"]
            return Outcome(
                status="oom" if first["error"]["out_of_memory"] else "failed",
                reason=message if bad_input else f"rank {first['rank']} failed{where}: {message}",
                bad_input=bad_input,
                rank=first["rank"],
                step=step,
                records=records,
            )
        return judge(trial, records)

    def check(self, trial: Trial) -> None:
        """What runs already cannot be changed: not its number, its variables or its surroundings."""
        if trial.settings["env"]:
            raise BadInput("--env cannot change ranks that run already; export it before torchrun")
        if trial.settings["link"] or trial.settings["split_gpu"]:
            raise BadInput("--link and --split-gpu need ranks of our own; run without torchrun")
        if trial.world_size > self._place.world_size:
            raise CannotRun(f"{trial.world_size} ranks were asked for, {self._place.world_size} are running")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise CannotRun("this rank's worker has ended; its own message stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Tell all ranks that the run is over, and wait for our worker."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
