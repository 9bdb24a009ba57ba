"""The communication benchmark: every collective at every size, checked, and timed one by one."""

import importlib
import statistics

import torch
import torch.distributed as dist

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.comm import DTYPE_BYTES, Comm
from scalescope.experiment.trial import Trial
from scalescope.results.heartbeat import Phase, Stage
from scalescope.worker.comm.operation import Operation, Shape
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.node import node_name, rounds_of_pairs
from scalescope.worker.process.position import Position
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.timing import clock_for

_MOST_ITERATIONS = 500
_LEAST_ITERATIONS = 5
_LEAST_OF_LONG_ONES = 3  # where one alone takes longer than the time for a size
_LONGEST_ITERATION_S = 6.0  # 64 MiB over 100 Mbit; the launcher waits twenty of them in silence
_LISTEN_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
_BEATS = (Phase.BACKWARD, Phase.FORWARD)  # two that alternate: every iteration is a sign of life
_PAIR_SIZES = {"cpu": (1 << 16, 1 << 22), "cuda": (1 << 16, 1 << 26)}


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """Raw times of every iteration, by collective, placement and size."""
    options = trial.options(Comm)
    measurements = Measurements()
    position.enter(Stage.STEADY, slowest_warmup_s=_LONGEST_ITERATION_S)
    if options.purpose == "listen":
        _let_nccl_choose(device, position)
        return measurements
    if options.pairs:
        _measure_pairs(options, group, device, position, fault, measurements)
        return measurements
    for name in options.collectives():
        card = cards.card("collectives", name)
        for size in options.sizes() if card.has_data else (0,):
            _begin(position, fault)
            slowest_s = 0.0
            for in_place in card.in_place:
                if options.in_place in (None, in_place):
                    taken_s = _measure_one(
                        options, name, size, in_place, group, device, position, measurements
                    )
                    slowest_s = max(slowest_s, taken_s)
            position.completed += 1
            if options.longest_exchange is not None and slowest_s > options.longest_exchange:
                break
    return measurements


def _begin(position: Position, fault: Fault | None) -> None:
    """Take up the next size or pair; the second mark tells ranks at work from one that never came."""
    position.begin_step()
    if fault is not None:
        fault.at_step(position.begun - 1)
    position.mark(Phase.FORWARD)


def _let_nccl_choose(device: torch.device, position: Position) -> None:
    """One all-reduce a size, untimed: NCCL writes into the log how it carries each."""
    for size in _LISTEN_SIZES:
        position.begin_step()
        dist.all_reduce(torch.ones(size // 4, device=device))
    _finish(device)


def _measure_one(
    options: Comm,
    name: str,
    size: int,
    in_place: bool,
    group: Group,
    device: torch.device,
    position: Position,
    measurements: Measurements,
) -> float:
    """Check and time one size; returns what an iteration takes on the slowest rank, warmed up."""
    count = size // DTYPE_BYTES[options.dtype]
    if cards.card("collectives", name).shares_array:
        count -= count % group.world_size  # as nccl-tests does: equal parts, and the size they really have
    shape = Shape(
        rank=group.rank,
        ranks=group.world_size,
        count=count,
        dtype=getattr(torch, options.dtype),
        device=device,
        in_place=in_place,
    )
    if size and count == 0:
        return 0.0
    operation = importlib.import_module(f"scalescope.worker.collectives.{name}").prepare(shape)
    key = f"{name}/{'in' if in_place else 'out'}/{count * DTYPE_BYTES[options.dtype]}"
    operation.reset()
    operation.run()
    _finish(device)
    measurements.counters[f"{key}/wrong"] = operation.wrong()
    first_s = group.largest(_iterate(operation, 1, group, device, position)[0], device)
    warmup_s = _iterate(operation, _warmups(options, first_s), group, device, position)
    typical_s = group.largest(statistics.fmean(warmup_s), device)
    times_s = _iterate(operation, _iterations(options, typical_s), group, device, position)
    measurements.samples[key] = [round(time_s, 9) for time_s in times_s]
    return typical_s


def _iterate(
    operation: Operation, count: int, group: Group, device: torch.device, position: Position
) -> list[float]:
    clock = clock_for(device, count)
    group.barrier()
    clock.start()
    for number in range(count):
        operation.run()
        clock.tick()
        position.mark(_BEATS[number % 2])
    clock.finish()
    return clock.step_times_s()


def _warmups(options: Comm, first_s: float) -> int:
    """Iterations before the measured ones; those of slow links are few."""
    return max(1, min(options.warmup, int(options.time_per_size / max(first_s, 1e-9)) // 2))


def _iterations(options: Comm, typical_s: float) -> int:
    """Iterations that fit into the time for a size, by the mean of the warm-up.

    The mean, because small messages may take a fraction of a millisecond or a tick of the scheduler: by
    their fastest, hundreds would be planned that take seconds.
    """
    if options.iters is not None:
        return options.iters
    least = _LEAST_OF_LONG_ONES if typical_s > options.time_per_size else _LEAST_ITERATIONS
    return max(least, min(int(options.time_per_size / max(typical_s, 1e-9)), _MOST_ITERATIONS))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _measure_pairs(
    options: Comm,
    group: Group,
    device: torch.device,
    position: Position,
    fault: Fault | None,
    measurements: Measurements,
) -> None:
    """Both directions between the pairs of a round, while all other ranks wait."""
    hosts = {group.rank: node_name(), **group.exchange("node", node_name())}
    for pairs in rounds_of_pairs([hosts[rank] for rank in range(group.world_size)]):
        _begin(position, fault)
        for low, high in (pair for pair in pairs if group.rank in pair):
            other = high if group.rank == low else low
            for size in _PAIR_SIZES[device.type]:
                measurements.samples[f"pair/{low}-{high}/{size}"] = _time_pair(size, other, device, options)
        group.barrier()
        position.completed += 1


def _time_pair(size: int, other: int, device: torch.device, options: Comm) -> list[float]:
    sent = torch.ones(size // 4, device=device)
    received = torch.empty_like(sent)
    count = 1 + (options.iters or 5)  # the first one opens the connection
    clock = clock_for(device, count)
    clock.start()
    for _ in range(count):
        # Receiving first, as in `sendrecv`: otherwise the two directions take turns on gloo.
        transfers = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, sent, other)]
        for transfer in dist.batch_isend_irecv(transfers):
            transfer.wait()
        clock.tick()
    clock.finish()
    return [round(time_s, 9) for time_s in clock.step_times_s()][1:]
