"""A simulated cluster of up to thousands of ranks: what its ranks and its network cost.

`timeline` plays launches of it event by event, `truth` says what they lose and why. Nothing here is shared
with the analysis, which has to recover these figures from the ranks' records.
"""

import math
from dataclasses import dataclass

from scalescope.experiment.explanations import PRELOADED, has_ablation, has_loader
from scalescope.experiment.machine import Gpu, Machine, combined_machine
from scalescope.experiment.trial import Trial

_DEVICE_NAME = "fake GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Two levels: ranks of a node exchange over fast links, nodes over their network cards."""

    fast_bytes_per_s: float = 200e9  # of a rank, inside its node
    fast_latency_s: float = 5e-6  # of a step of the ring inside a node
    card_bytes_per_s: float = 50e9  # of all cards of a node together
    card_latency_s: float = 15e-6  # of a step of the tree between nodes
    slow_node: int | None = None
    slow_by: float = 1.0  # so many times less than others is what that node's cards carry

    def card_rate(self, node: int) -> float:
        """Bytes per second that a node's cards carry in each direction."""
        return self.card_bytes_per_s / (self.slow_by if node == self.slow_node else 1.0)

    def inside_s(self, size_bytes: float, ranks: int) -> float:
        """A reduce-scatter and an all-gather in a ring of the ranks of a node."""
        steps = 2 * (ranks - 1)
        return steps * (self.fast_latency_s + size_bytes / ranks / self.fast_bytes_per_s)

    def between_s(self, size_bytes: float, nodes: int) -> float:
        """An all-reduce between nodes, at the pace of the slowest card."""
        if nodes == 1:
            return 0.0
        slowest = min(self.card_rate(node) for node in {0, self.slow_node or 0} if node < nodes)
        hops = 2 * math.ceil(math.log2(nodes))
        return hops * self.card_latency_s + 2 * (nodes - 1) / nodes * size_bytes / slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterModel:
    """What a step costs on every rank, in seconds; jitter is the standard deviation of a normal noise."""

    seed: int = 0
    fixed_s: float = 0.010
    per_sample_s: float = 0.0002
    wrapper_s: float = 0.0
    contention_s: float = 0.0  # as soon as there are several ranks
    input_alone_s: float = 0.0  # waiting for a loader on one rank
    input_s: float = 0.0  # the same on several
    jitter_s: float = 0.0  # of every rank in every step
    slow_rank: int | None = None
    slow_s: float = 0.0  # what that rank takes longer in every step, if there are several
    burst_probability: float = 0.0  # of a rank in a step
    burst_s: float = 0.0  # what such a stall takes
    launch_noise: float = 0.0  # relative, of all compute of a launch
    network_noise: float = 0.0  # relative, of all transfers of a launch
    rank_noise_s: float = 0.0  # of a rank in all steps of a launch
    recording_s: float = 0.0  # what a profiler adds to a step's compute
    slowdown: float = 0.0  # compute takes so much longer while a transfer runs
    gradient_bytes: int = 100_000_000
    buckets: int = 4
    forward_share: float = 0.3  # of the compute; the first bucket follows some of the backward pass
    optimizer_share: float = 0.1  # of the compute, after the last bucket
    ranks_per_node: int = 8
    network: Network = Network()

    @property
    def backward_share(self) -> float:
        return 1.0 - self.forward_share - self.optimizer_share

    @property
    def stall_s(self) -> float:
        """What stalls add to a step of a rank in the long run."""
        return self.burst_probability * self.burst_s

    def compute_s(self, trial: Trial) -> float:
        """The compute of a step of a usual rank, without stalls."""
        time_s = self.fixed_s + self.per_sample_s * trial.rank_batch_size
        time_s += self.wrapper_s if trial.is_wrapped else 0.0
        return time_s + (self.contention_s if trial.world_size > 1 else 0.0)

    def waiting_for_input_s(self, trial: Trial) -> float:
        """What a step waits for samples, which is the same on every rank."""
        if not has_loader(trial) or has_ablation(trial, PRELOADED):
            return 0.0
        return self.input_s if trial.world_size > 1 else self.input_alone_s

    def delays_s(self, ranks: int) -> list[float]:
        """What each rank's step takes longer than a usual one's, in every launch."""
        return [self.slow_s if ranks > 1 and rank == self.slow_rank else 0.0 for rank in range(ranks)]

    def nodes_of(self, ranks: int) -> int:
        return math.ceil(ranks / self.ranks_per_node)

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def transfer_s(self, size_bytes: float, ranks: int) -> float:
        """An all-reduce of ranks that all have arrived."""
        inside = self.network.inside_s(size_bytes, min(ranks, self.ranks_per_node))
        return inside + self.network.between_s(size_bytes, self.nodes_of(ranks))

    def pair_s(self, size_bytes: float, low: int, high: int) -> float:
        """Both directions between two ranks; ranks of two nodes share the cards with their neighbours."""
        ends = (self.node_of(low), self.node_of(high))
        if ends[0] == ends[1]:
            return self.network.fast_latency_s + size_bytes / self.network.fast_bytes_per_s
        rate = min(map(self.network.card_rate, ends)) / self.ranks_per_node
        return self.network.card_latency_s + size_bytes / min(rate, self.network.fast_bytes_per_s)

    def host_of(self, rank: int) -> str:
        return f"node{self.node_of(rank)}"

    def hosts(self, ranks: int) -> dict[str, Machine]:
        """The nodes of so many ranks, each with a GPU for every rank."""
        return {f"node{node}": self._host(node) for node in range(self.nodes_of(ranks))}

    def machine(self, ranks: int) -> Machine:
        """All of these nodes as one machine."""
        hosts = self.hosts(ranks)
        return combined_machine(hosts, dict.fromkeys(hosts, self.ranks_per_node))

    def _host(self, node: int) -> Machine:
        gpus = tuple(
            Gpu(index=gpu, name=_DEVICE_NAME, memory_bytes=1 << 36, uuid=f"GPU-{node}-{gpu}")
            for gpu in range(self.ranks_per_node)
        )
        return Machine(
            host=f"node{node}",
            system="Linux",
            architecture="none",
            cpu_model="fake processor",
            cores=4 * self.ranks_per_node,
            memory_bytes=1 << 40,
            python_version="3.11.0",
            torch_version="2.13.0",
            cuda_version="12.8",
            nccl_version="2.27.3",
            driver_version=None,
            backends=("gloo", "nccl"),
            gpus=gpus,
            gpu_problem=None,
        )
