"""What the command line of a node's first rank does for its worker: it samples the node from outside.

The worker asks in lines of JSON and hands the answers to rank 0 with its record: nodes then need no
connection of their own. Rank 0's command line samples its own node.
"""

import contextlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from scalescope.launch.telemetry.load import NOBODY, LoadMeter
from scalescope.launch.telemetry.sampler import Telemetry
from scalescope.launch.topology import ROOT, host_topology
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import RankRecord


class NodeSampler:
    """Samples one node while its ranks measure; `ranks` is how many it has."""

    def __init__(self, ranks: int, meter: LoadMeter | None = None, root: Path = ROOT) -> None:
        self._ranks = ranks
        self._root = root
        # torchrun or a step's daemon: all ranks of this host are under it
        self.meter = meter or LoadMeter(os.getppid())

    @property
    def sees_all_ranks(self) -> bool:
        """Whether all ranks of this host are children of the process that started us."""
        return len(self.meter.own_children()) >= self._ranks

    def start(self, gpus: Sequence[str], pids: Sequence[int]) -> "NodeSampling":
        """Begin to sample these GPUs and the processes of these ranks."""
        ours = set(pids) <= self.meter.own_pids()  # a container may number its processes differently
        return NodeSampling(
            Telemetry(
                gpus,
                (lambda: pids) if ours else tuple,
                meter=self.meter if self.sees_all_ranks else LoadMeter(NOBODY),
                sys=self._root / "sys",
            )
        )


class NodeSampling:
    """The samples of one launch."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._held = contextlib.ExitStack()
        self._held.callback(telemetry.close)
        self._sampling = contextlib.ExitStack()
        self._sampling.enter_context(telemetry.sampling())

    def stop(self) -> None:
        """End the sampling; what was sampled can still be read."""
        self._sampling.close()

    def of_window(self, records: Sequence[RankRecord]) -> dict[str, Any]:
        """What was sampled while the first of these ranks measured."""
        self.stop()
        return self._telemetry.of_window(records)

    def close(self) -> None:
        self._sampling.close()
        self._held.close()


class NodeWatch:
    """Answers the questions of the worker of a node's first rank."""

    def __init__(self, sampler: NodeSampler, root: Path = ROOT) -> None:
        self._sampler = sampler
        self._root = root
        self._sampling: NodeSampling | None = None

    def serve(self, questions: IO[bytes], answers: IO[bytes]) -> None:
        """Answer every line with one, until the worker ends."""
        with contextlib.suppress(OSError, ValueError):  # the worker has ended
            for line in questions:
                answers.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
                answers.flush()
        self._stop()

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self.answer(question)
        except Exception as error:  # evidence that cannot be had must not end a measurement
            return {"problem": repr(error)}

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """`topology` describes the node, `begin` starts sampling, `end` returns what was sampled."""
        if "topology" in question:
            return {"topology": host_topology(question["topology"], self._root).to_json()}
        if "begin" in question:
            self._stop()
            begin = question["begin"]
            self._sampling = self._sampler.start(begin["gpus"], begin["pids"])
            return {}
        if self._sampling is None:
            return {}
        record = RankRecord(rank=0, host="", device="", placement="", counters=dict(question["end"]))
        telemetry = self._sampling.of_window([record])
        self._stop()
        return {"telemetry": telemetry}

    def _stop(self) -> None:
        if self._sampling is not None:
            self._sampling.close()
            self._sampling = None


def watch_worker(watch: NodeWatch, questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer a worker from a thread, as long as it runs."""

    def serve() -> None:
        with contextlib.suppress(OSError), questions, answers:
            watch.serve(questions, answers)

    threading.Thread(target=serve, daemon=True).start()


def merged_telemetry(by_host: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The telemetry of a launch: of one host its own; of several also each separately, under `hosts`.

    What has always been there stays that of the first host, but other load is that of the host with most.
    """
    known = {host: telemetry for host, telemetry in by_host.items() if telemetry}
    if len(known) < 2:
        return next(iter(known.values()), {})
    first = {name: value for name, value in next(iter(known.values())).items() if name != "infiniband"}
    loads = [OtherLoad.from_json(telemetry.get("load")) for telemetry in known.values()]
    most = max(loads, key=lambda load: (load.disturbs, load.is_present, load.other_cores or 0.0)).to_json()
    return {**first, **({"load": most} if most else {}), "hosts": dict(known)}
