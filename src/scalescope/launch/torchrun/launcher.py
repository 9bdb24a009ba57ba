"""Attached launcher: we are a rank under torchrun or srun, so the processes that are there do the trials.

Every rank's command line starts one worker child for the whole run. Rank 0's plans, measures and writes; the
others follow what its worker publishes in the store.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scalescope.catalog.measuring import INIT_TIMEOUT_S, Measuring
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.errors import BadInput, CannotRun, ExitCode, ScalescopeError, TimedOut
from scalescope.experiment.explanations import Phase
from scalescope.experiment.machine import Machine, combined_machine, differences
from scalescope.experiment.trial import Trial
from scalescope.launch.culprit import RankFailure, find_culprit, find_hung_ranks, ranks_text
from scalescope.launch.launcher import Outcome, RanksLost, Watcher, record_from
from scalescope.launch.probing import Node, nodes_from_probes
from scalescope.launch.telemetry.load import load_at_start
from scalescope.launch.telemetry.sampler import gpus_of
from scalescope.launch.topology import host_topology
from scalescope.launch.torchrun.children import check_for_ranks, ranks_here, start_worker, worker_variables
from scalescope.launch.torchrun.node_watch import NodeSampler, merged_telemetry
from scalescope.launch.torchrun.rank_context import RankContext
from scalescope.launch.validity import judge
from scalescope.results.files import write_atomically
from scalescope.results.other_load import OtherLoad
from scalescope.results.ranks import UNKNOWN, RankPlacement, is_secondary_error
from scalescope.results.result import RankRecord
from scalescope.results.run_folder import RunFolder

_KEPT_BY_RANKS = tuple(
    setting.name
    for setting in settings_of(Placement)
    if setting.lever is not None and setting.lever.needs_new_ranks
)
_FARTHEST = (1 << 30,)  # of a rank that has finished


def members_of(trial: Trial, nodes: Sequence[tuple[int, ...]]) -> list[int]:
    """The ranks that take part, in the order they have in the trial; `nodes` has the ranks of each."""
    among, count = trial.ranks_among, trial.world_size
    if among == "one_node":
        return list(next(ranks for ranks in nodes if len(ranks) >= count)[:count])
    if among == "one_per_node":
        return [ranks[0] for ranks in nodes][:count]
    return sorted(rank for ranks in nodes for rank in ranks)[:count]


def _rank_failure(record: dict[str, Any]) -> RankFailure:
    error = record["error"]
    return RankFailure(
        rank=record["rank"],
        message=str(error["message"]),
        is_lost=bool(error.get("lost") or error.get("stalled")),
        at_s=float(error["at_wall_s"]),
    )


class AttachedLauncher:
    """Rank 0's side: sends trials to its worker, which shares them with the other ranks' workers."""

    repeatable = False

    def __init__(self, context: RankContext, init_timeout_s: float = INIT_TIMEOUT_S) -> None:
        self._context = context
        self._nodes: dict[str, Node] = {}
        self._busy = False
        self._cores_of_ranks: dict[str, Any] = {}
        self._held = contextlib.ExitStack()
        variables, leader = worker_variables(context, self._held, init_timeout_s)
        if leader is not None:
            leader.acquire()
            self._held.callback(leader.release)
        self._sampler = NodeSampler(ranks_here({**os.environ, **variables}))
        self._began = self._sampler.meter.read(time.monotonic())
        self._child = start_worker(variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self._context.world_size

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return None  # ranks on other hosts are asked

    def expect(self, trials: Iterable[Trial]) -> None:
        """Every rank loads torch itself."""

    def machine(self) -> Machine:
        return combined_machine(
            self.nodes(), {name: len(ranks) for name, ranks in self.ranks_of_nodes().items()}
        )

    def nodes(self) -> dict[str, Machine]:
        return {name: node.machine for name, node in self._probed_nodes().items()}

    def systems(self) -> dict[str, dict[str, Any]]:
        return {name: node.system for name, node in self._probed_nodes().items()}

    def other_load(self) -> OtherLoad:
        """Of the host of rank 0; unknown where its ranks were started apart and look like others."""
        here = next(iter(self._probed_nodes().values()))
        if not self._sampler.sees_all_ranks:
            return OtherLoad()
        return load_at_start(self._sampler.meter, self._began, [gpu.uuid for gpu in here.machine.gpus])

    def ranks_of_nodes(self) -> dict[str, tuple[int, ...]]:
        """Which ranks each node has."""
        return {name: node.ranks for name, node in self._probed_nodes().items()}

    def _probed_nodes(self) -> dict[str, Node]:
        if not self._nodes:
            all_ranks = list(range(self._context.world_size))
            answers = self._ask({"probe": True, "ranks": all_ranks})["answers"]
            for answer in answers:
                if answer.get("state") == "failed":
                    where = "" if answer["host"] == UNKNOWN else f" on {answer['host']}"
                    raise RanksLost(
                        f"rank {answer['rank']}{where} could not be probed: {answer['error']['message']}"
                    )
            here = answers[0]["system"]  # the other nodes were described by their own command lines
            if here is not None:
                here["topology"] = host_topology(here.get("link_matrix")).to_json()
            self._nodes = nodes_from_probes(answers)
        return self._nodes

    def notes(self) -> list[str]:
        """What the user should know about where the ranks are."""
        notes = []
        if len(self.nodes()) > 1:
            notes.append(
                f"{self._context.world_size} ranks on {len(self.nodes())} nodes: {', '.join(self.nodes())}."
            )
        if self._context.rendezvous:
            notes.append(f"Rendezvous of the ranks: {self._context.rendezvous}.")
        if self._context.rendezvous or len(self.nodes()) > 1:
            notes.append("torch's store has no authentication: keep its port inside the cluster.")
        return notes + [f"The nodes differ: {difference.text}." for difference in differences(self.nodes())]

    def launch(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        limits: Measuring,
        watcher: Watcher,
        *,
        deadline: float | None = None,
        phases: Sequence[Phase] = (),
    ) -> Outcome:
        """The deadline is not kept: to end ranks that others started would fail their whole job."""
        members = members_of(trial, list(self.ranks_of_nodes().values()))
        watched = dict(self._watched(trial, members))
        here = watched.pop(0, {"gpus": [], "pids": []})
        request = {
            "settings": dict(trial.settings),
            "ranks": members,
            "launch": launch,
            "folder": str(folder.path.absolute()),
            # Ends the wait for a rank that failed; a rank that hangs meets the stall limit before.
            "group_timeout_s": max(limits.init_timeout, 2.0 * (limits.stall_timeout or 0.0)),
            "limits": {
                "init": limits.init_timeout,
                "warmup": limits.warmup_timeout,
                "stall": limits.stall_timeout,
            },
            "watch": watched,
        }
        sampling = self._sampler.start(here["gpus"], here["pids"])
        try:
            raw = self._ask(request)["answers"]
            sampling.stop()
            lost = self._named_by_host(raw, members)
            if any(answer.get("error", {}).get("stalled") for answer in raw):
                raise self._hang(trial, launch, folder, watcher, raw)
            elsewhere = self._handed_over(trial, launch, folder, members, raw)
            outcome = self._outcome(trial, launch, folder, watcher, raw)
            if lost:
                verb = "was" if len(lost) == 1 else "were"
                raise RanksLost(
                    f"{' and '.join(lost)} {verb} lost, and the other ranks cannot continue", outcome
                )
            here_sampled = sampling.of_window(self._records_here(outcome.records, members))
            by_host = {next(iter(self._probed_nodes())): here_sampled, **elsewhere}
            return dataclasses.replace(outcome, telemetry=merged_telemetry(by_host))
        finally:
            sampling.close()

    def _watched(self, trial: Trial, members: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """By the first rank of each node that takes part: the GPUs and processes to sample there."""
        for node in self._probed_nodes().values():
            here = [rank for rank in node.ranks if rank in members]
            if node.first_rank in members:
                pids = dict(zip(node.ranks, node.pids, strict=False))
                gpus = gpus_of(trial, node.machine, ranks=len(here))
                yield node.first_rank, {"gpus": gpus, "pids": [pids[rank] for rank in here if rank in pids]}

    def _records_here(self, records: Sequence[RankRecord], members: Sequence[int]) -> list[RankRecord]:
        """The records of ranks on this host, whose clock is ours."""
        here = next(iter(self._probed_nodes().values())).ranks
        return [record for record in records if members[record.rank] in here]

    def _handed_over(
        self,
        trial: Trial,
        launch: int,
        folder: RunFolder,
        members: Sequence[int],
        raw: Sequence[dict[str, Any]],
    ) -> dict[str, dict[str, Any]]:
        """The telemetry of other nodes, by host; NCCL's logs are stored where a local rank's would be."""
        hosts = {node.first_rank: name for name, node in self._probed_nodes().items()}
        telemetry = {}
        for answer in raw:
            log, sampled = answer.pop("nccl_log", None), answer.pop("telemetry", None)
            if log:
                write_atomically(folder.log_file(trial.trial_id, launch, answer["rank"]), log)
            if sampled:
                telemetry[hosts[members[answer["rank"]]]] = sampled
        return telemetry

    def _named_by_host(self, raw: list[dict[str, Any]], ranks: list[int]) -> list[str]:
        """Put the hosts of lost ranks into their records, which they could not do; returns the lost ranks."""
        hosts = {rank: name for name, node_ranks in self.ranks_of_nodes().items() for rank in node_ranks}
        lost = [answer for answer in raw if answer.get("error", {}).get("lost")]
        for answer in lost:
            answer["host"] = hosts[ranks[answer["rank"]]]
        return [f"rank {ranks[answer['rank']]} on {answer['host']}" for answer in lost]

    def _outcome(
        self, trial: Trial, launch: int, folder: RunFolder, watcher: Watcher, raw: list[dict[str, Any]]
    ) -> Outcome:
        """How the launch ended, from what the ranks answered."""
        for answer in raw:
            path = folder.rank_file(trial.trial_id, launch, answer["rank"])
            write_atomically(path, json.dumps(answer))
        records = [record_from(answer) for answer in raw]
        placements = [RankPlacement.from_record(answer["rank"], answer) for answer in raw]
        watcher.placed([placement for placement in placements if placement.line != UNKNOWN])
        failed = {answer["rank"]: answer for answer in raw if answer["state"] != "done"}
        if failed:
            first = failed[find_culprit(map(_rank_failure, failed.values())).rank]
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

    def _hang(
        self, trial: Trial, launch: int, folder: RunFolder, watcher: Watcher, raw: list[dict[str, Any]]
    ) -> RanksLost:
        """The end of a run whose ranks all wait: for a rank that failed, or for the one furthest behind."""
        outcome = self._outcome(trial, launch, folder, watcher, raw)
        self._kill_worker()  # it waits too
        errors = [answer.get("error", {}) for answer in raw]
        if any(answer["state"] == "failed" and not is_waiting(answer["error"]) for answer in raw):
            return RanksLost(f"{outcome.reason}, and the other ranks cannot continue", outcome)
        silent = [index for index, error in enumerate(errors) if error.get("lost")]
        hung = find_hung_ranks([tuple(error.get("position", _FARTHEST)) for error in errors], silent)
        waited = next(error["message"] for error in errors if error.get("stalled"))
        step = errors[hung[0]].get("step")
        where = "" if step is None else f" at step {step}"
        state = "does not answer" if silent else f"hangs{where}"
        if len(hung) > 1:
            state = "do not answer" if silent else f"hang{where}"
        reason = f"{ranks_text(hung, len(raw))} {state}: {waited}"
        outcome = dataclasses.replace(
            outcome, status="hang", reason=reason, rank=hung[0] if len(hung) == 1 else None, step=step
        )
        lost = RanksLost(f"{reason}, and the other ranks cannot continue", outcome)
        lost.exit_code = ExitCode.HANG
        return lost

    def check(self, trial: Trial) -> None:
        """Ranks that are already running cannot be changed: not their number, variables or environment."""
        if trial.is_command:
            raise BadInput("commands start their own ranks; run scalescope outside torchrun and srun")
        check_for_ranks(trial, self._context.world_size)
        for name in _KEPT_BY_RANKS:
            if self._cores_of_ranks.setdefault(name, trial.settings.get(name)) != trial.settings.get(name):
                flag = f"--{name.replace('_', '-')}"
                raise BadInput(f"{flag}: ranks that are already running keep their cores; give one value")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._busy = True  # and stays so where a signal ends the waiting
        with contextlib.suppress(OSError):  # it has ended, and may have said why
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        try:
            line = self._child.stdout.readline()
        except OSError:
            line = b""
        self._busy = False
        if not line:
            raise RanksLost("rank 0's worker has ended; see its message above")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise _refusal(**answer["refused"])
        return answer

    def _kill_worker(self) -> None:
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End the run for all ranks and wait for our worker; inside a trial it is killed."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        if self._busy:
            self._child.kill()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._held.close()


def _refusal(message: str, exit_code: int) -> ScalescopeError:
    """What rank 0's worker could not do before the first trial."""
    return TimedOut(message) if exit_code == ExitCode.HANG else CannotRun(message)


def is_waiting(error: dict[str, Any]) -> bool:
    """Whether a rank made no progress, never answered, or failed only because of others."""
    return bool(error.get("stalled") or error.get("lost")) or is_secondary_error(str(error["message"]))
