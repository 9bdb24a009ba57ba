"""Facts: what rules may look at for one configuration on several ranks; what is not known is None."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalescope.analysis.collectives import collective_rows
from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.comm.expected import Expectable, expected_busbw, link_ends
from scalescope.analysis.comm.nccl_log import NcclChoices, logged_launches, nccl_choices
from scalescope.analysis.comm.pairs import PairRow, pair_rows
from scalescope.analysis.commands import batch_text
from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.culprit import Straggler
from scalescope.analysis.other_load import load_of
from scalescope.analysis.scaling.rows import ScalingRow, scaling_rows
from scalescope.analysis.scaling.waterfall import (
    BETWEEN_RANKS,
    COMMUNICATION,
    INPUT,
    STRAGGLERS,
    Term,
    Waterfall,
)
from scalescope.analysis.telemetry import TelemetrySummary
from scalescope.analysis.training.activity import activities_of
from scalescope.analysis.training.pauses import PeriodicPauses, periodic_pauses
from scalescope.analysis.training.uneven_work import UnevenWork, uneven_work
from scalescope.diagnose.varied import varied_settings
from scalescope.experiment.explanations import at_per_rank_batch, single_rank_baseline
from scalescope.experiment.trial import Trial
from scalescope.results.result import LARGEST_PARAMETERS, Result, number_in, results_by_trial
from scalescope.results.run import Run

LEAST_SHARE = 0.03  # of the ranks: smaller losses are not worth a finding
_LARGE = 0.15  # of the ranks: worth one though the interval includes none at all, which the finding states
_FAR = 3.0
_ONLY_BYTES_COUNT_S = 0.05  # far beyond any latency: more bytes take longer in proportion


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeParameter:
    """A parameter that much of the gradients belongs to."""

    name: str
    size_bytes: int
    changed_share: float | None  # of its rows, by one step of all ranks; None is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One configuration on several ranks, and what was measured beside it."""

    path: Path  # of the run
    varied: tuple[tuple[str, object], ...]  # settings that differ inside the run, with their value here
    row: ScalingRow
    rows: tuple[ScalingRow, ...]  # of the whole run, for comparison
    curve: Curve | None  # all-reduce over the same ranks and links
    gradient_bytes: int | None
    bucket_bytes: tuple[int, ...] | None
    one_rank: Configuration | None  # plain, with the same batch
    cores: int | None
    gpu_memory_bytes: int | None
    pairs: tuple[PairRow, ...] = ()  # each pair of ranks, measured alone
    nccl: NcclChoices | None = None  # what NCCL logged that it uses
    hosts: tuple[str, ...] = ()  # of each rank
    largest_parameters: tuple[LargeParameter, ...] = ()
    expected: Expectable | None = None  # what the network should deliver, by its hardware
    gpu_uuids: tuple[str | None, ...] = ()  # of each rank; None is unknown
    has_other_load: bool = False  # others used what the ranks needed, in some launches of the run
    uneven_work: UnevenWork | None = None  # batches of some ranks hold more, and that takes time
    pauses: PeriodicPauses | None = None  # periodic, of some ranks or all

    @property
    def about(self) -> str:
        """The configuration in a few words."""
        others = "".join(f", {name} {value}" for name, value in self.varied)
        return f"{self.ranks} ranks, {batch_text(self.trial)}{others}"

    @property
    def batch(self) -> int:
        return self.row.batch

    @property
    def strategies(self) -> tuple[str, ...]:
        """Of all configurations of the run that are wrapped."""
        return tuple(sorted({row.trial.strategy for row in self.rows if row.trial.is_wrapped}))

    @property
    def trial(self) -> Trial:
        return self.row.trial

    @property
    def waterfall(self) -> Waterfall | None:
        return self.row.waterfall

    @property
    def ranks(self) -> int:
        return self.row.ranks

    @property
    def nodes(self) -> int:
        """How many hosts the ranks ran on; 1 where it was not recorded."""
        return len(set(self.hosts)) or 1

    @property
    def telemetry(self) -> TelemetrySummary:
        return self.row.configuration.telemetry

    @property
    def step_s(self) -> float:
        return self.row.configuration.step_time_s.value

    @property
    def compute_s(self) -> float | None:
        """A step of one rank alone with the samples that one of several has."""
        waterfall = self.waterfall
        return None if waterfall is None else self.step_s - waterfall.simple_comm_s.value

    def term(self, name: str) -> Term | None:
        return None if self.waterfall is None else self.waterfall.term(name)

    def lost(self, name: str) -> float | None:
        """Ranks' worth of speed that a term costs; None where it is unknown, 0 where it is too little."""
        term = self.term(name)
        if term is None or term.lost is None:
            return None
        least = LEAST_SHARE if self.is_sure(name) else _LARGE
        return term.lost.value if term.lost.value > least * self.ranks else 0.0

    def is_sure(self, name: str) -> bool:
        """Whether all of a term's interval is a loss; one launch has no interval, so it never is."""
        term = self.term(name)
        if term is None or term.lost is None:
            return True  # nothing is claimed about it
        return term.lost.low is not None and term.lost.low > 0.0

    @property
    def culprit(self) -> Straggler | None:
        """The rank that is persistently the slowest, where waiting for it costs something."""
        straggler = None if self.waterfall is None else self.waterfall.straggler
        if straggler is None or not straggler.persistent or not self.lost(STRAGGLERS):
            return None
        return straggler

    @property
    def culprit_lost(self) -> float:
        """Ranks' worth of speed that waiting for that rank costs."""
        return 0.0 if self.culprit is None else self.lost(STRAGGLERS) or 0.0

    @property
    def culprit_host(self) -> str | None:
        """The host of that rank; None where there is none, or its host is not known."""
        culprit = self.culprit
        if culprit is None or culprit.rank >= len(self.hosts):
            return None
        return self.hosts[culprit.rank]

    def is_single(self, name: str) -> bool:
        """Whether a term stands on a single launch, which nothing can make doubtful, or sure."""
        term = self.term(name)
        return term is not None and term.lost is not None and term.lost.low is None

    @property
    def communication_lost(self) -> float | None:
        """Ranks' worth of speed lost waiting for gradients; an upper bound unless measured separately."""
        if self.waterfall is None:
            return None
        known = self.lost(COMMUNICATION)
        if known is not None:
            return known
        if (term := self.term(INPUT)) is not None and term.time_s is None:
            return None  # it may be samples that are waited for
        rest = self.waterfall.unexplained_s * self.ranks / self.step_s + (self.lost(BETWEEN_RANKS) or 0.0)
        return rest if rest > LEAST_SHARE * self.ranks else 0.0

    @property
    def communication_is_measured(self) -> bool:
        term = self.term(COMMUNICATION)
        return term is not None and term.lost is not None

    @property
    def exchange_s(self) -> float | None:
        """What sending all gradients once takes: by the measured curve, or what they add to a step.

        The second is a lower bound: compute hides the rest.
        """
        if self.curve is not None:
            times_s = self.bucket_times_s
            return None if times_s is None else sum(times_s)
        return self.waiting_s

    @property
    def waiting_s(self) -> float | None:
        """What communication adds to a step; an upper bound where it was not measured separately."""
        lost = self.communication_lost
        return lost * self.step_s / self.ranks if lost else None

    @property
    def exchange_source(self) -> str:
        return "all-reduce curve of this run" if self.curve is not None else "what gradients add to a step"

    @property
    def transfer_explains_wait(self) -> bool:
        """Whether ranks wait about as long as sending takes: if far longer, they wait for something else."""
        waiting_s, exchange_s = self.waiting_s, self.exchange_s
        return waiting_s is None or exchange_s is None or waiting_s <= _FAR * exchange_s

    @property
    def bucket_times_s(self) -> tuple[float, ...] | None:
        """What each bucket takes by the measured curve, first to last; None outside its range."""
        if self.curve is None or self.gradient_bytes is None or not self.curve.points:
            return None
        if not self._all_reduces_gradients:
            return None
        sizes = [size // self._shrinks for size in self.bucket_bytes or (self.gradient_bytes,)]
        return tuple(map(self._time_s, sizes)) if self._reaches(max(sizes)) else None

    @property
    def _all_reduces_gradients(self) -> bool:
        """Whether a curve of all-reduces predicts the exchange; of a command where it uses DDP."""
        if self.trial.is_command:
            return self.row.configuration.wrapper == "ddp"
        return bool(self.trial.strategy_card.all_reduces_gradients)

    def _reaches(self, size: int) -> bool:
        """Whether the curve can tell about a size: a little beyond its end, or where only bytes count."""
        assert self.curve is not None
        largest, time_s = self.curve.points[-1]
        return size <= 4 * largest or time_s >= _ONLY_BYTES_COUNT_S

    @property
    def _shrinks(self) -> int:
        """By what a hook divides the bytes that travel."""
        return 2 if self.trial.comm_hook != "none" else 1

    @property
    def sent_bytes(self) -> int | None:
        """What travels of the gradients in a step."""
        return None if self.gradient_bytes is None else self.gradient_bytes // self._shrinks

    @property
    def exchange_at_once_s(self) -> float | None:
        """What one exchange of all gradients would take."""
        if self.curve is None or self.exchange_s is None or self.gradient_bytes is None:
            return None
        size = self.gradient_bytes // self._shrinks
        return self._time_s(size) if self._reaches(size) else None

    def _time_s(self, size: int) -> float:
        """Inside the curve as measured; a little outside by its last rate, or by its latency."""
        assert self.curve is not None
        smallest, largest = self.curve.points[0][0], self.curve.points[-1][0]
        if size > largest:
            return self.curve.time_s(largest) * size / largest
        return self.curve.time_s(max(size, smallest))

    @property
    def latency_s(self) -> float | None:
        """Time of the smallest exchange that was measured."""
        return self.curve.points[0][1] if self.curve is not None and self.curve.points else None


def facts_of(run: Run) -> tuple[Facts, ...]:
    """The facts of every configuration on several ranks, the largest world size first."""
    measured = configurations(run.results)
    rows = scaling_rows(measured)
    curves, pairs, choices = curves_of(run), _pairs(run), _choices(run)
    machine = run.environment.get("machine", {})
    cores, gpus = machine.get("cores"), machine.get("gpus") or []
    by_trial = {configuration.trial.trial_id: configuration for configuration in measured}
    launches = results_by_trial(run.results)
    varied = varied_settings(row.trial for row in rows)
    has_other_load = load_of(run).is_present
    cases = [
        Facts(
            path=run.path.resolve() if run.path.is_symlink() else run.path,
            varied=tuple((n, row.trial.settings[n]) for n in varied[row.ranks] if n in row.trial.settings),
            row=row,
            rows=rows,
            curve=curves.get(network_path(row.trial)),
            gradient_bytes=_counter(own.results, row.trial, "gradient_bytes"),
            bucket_bytes=_buckets(own.results, row.trial),
            largest_parameters=_largest_parameters(own.results),
            one_rank=by_trial.get(single_rank_baseline(at_per_rank_batch(row.trial)).trial_id),
            pairs=pairs.get(network_path(row.trial), ()),
            nccl=choices.get(network_path(row.trial)),
            hosts=_hosts(own.results, row.trial),
            expected=_expected(own, row.trial),
            gpu_uuids=_gpu_uuids(own, row.trial),
            has_other_load=has_other_load,
            cores=int(cores) if isinstance(cores, int) else None,
            gpu_memory_bytes=int(gpus[0]["memory_bytes"]) if gpus else None,
            uneven_work=_uneven_work(own.results, row.configuration),
            pauses=periodic_pauses(activities_of(own.results, row.trial), on_gpu=row.trial.device == "cuda"),
        )
        for row in rows
        if row.ranks > 1 and (row.waterfall is not None or not row.is_baseline)
        for own in [replace(run, results=tuple(launches.get(row.trial.trial_id, ())))]
    ]
    return tuple(sorted(cases, key=lambda facts: -facts.ranks))


def _largest_parameters(results: Iterable[Result]) -> tuple[LargeParameter, ...]:
    """Of the first rank that stored them."""
    for result in results:
        rows = result.ranks[0].tables.get(LARGEST_PARAMETERS, ()) if result.ranks else ()
        if rows:
            return tuple(
                LargeParameter(
                    name=str(row.get("name") or ""),
                    size_bytes=int(number_in(row, "bytes") or 0),
                    changed_share=number_in(row, "changed_share"),
                )
                for row in rows
            )
    return ()


def _uneven_work(results: Iterable[Result], configuration: Configuration) -> UnevenWork | None:
    trial = configuration.trial
    return uneven_work(
        activities_of(results, trial),
        recorded=configuration.recorded,
        on_gpu=trial.on_gpu,
    )


NetworkPath = tuple[object, ...]


def network_path(trial: Trial) -> NetworkPath:
    """What an exchange's speed depends on besides its size."""
    return trial.world_size, trial.ranks_among, trial.link, trial.split_gpu, trial.backend


def curves_of(run: Run) -> dict[NetworkPath, Curve]:
    """What an all-reduce takes, by the path it was measured on."""
    points: dict[NetworkPath, list[tuple[int, float]]] = {}
    paths = {result.trial_id: network_path(result.trial) for result in run.results}
    for row in collective_rows(run.results):
        if row.collective == "all_reduce":
            points.setdefault(paths[row.trial_id], []).append((row.size_bytes, row.time_s))
    return {key: Curve.through(point) for key, point in points.items()}


def _pairs(run: Run) -> dict[NetworkPath, tuple[PairRow, ...]]:
    measured: dict[NetworkPath, list[Result]] = {}
    for result in run.of_status("ok"):
        if result.trial.measures_pairs:
            measured.setdefault(network_path(result.trial), []).append(result)
    return {path: pair_rows(results, run.environment) for path, results in measured.items()}


def _choices(run: Run) -> dict[NetworkPath, NcclChoices]:
    choices: dict[NetworkPath, NcclChoices] = {}
    for result in logged_launches(run):
        path = network_path(result.trial)
        if path not in choices:
            choices[path] = nccl_choices(run, result)
    return choices


def _hosts(results: Iterable[Result], trial: Trial) -> tuple[str, ...]:
    for result in results:
        if result.trial_id == trial.trial_id and result.status == "ok":
            return tuple(rank.host for rank in result.ranks)
    return ()


def _expected(run: Run, trial: Trial) -> Expectable | None:
    """What the ranks of a trial should reach with its buckets, by the hosts of its first launch."""
    for result in run.results:
        if result.trial_id == trial.trial_id and result.status == "ok":
            shrinks = 2 if trial.comm_hook != "none" else 1
            sizes = [size // shrinks for size in _buckets(run.results, trial) or ()]
            return expected_busbw(trial, link_ends(run.environment, result.ranks), sizes)
    return None


def _gpu_uuids(run: Run, trial: Trial) -> tuple[str | None, ...]:
    """The GPU of each rank: as the rank recorded it, or else by its number on its host."""
    nodes = run.environment.get("nodes") or {}
    for result in run.results:
        if result.trial_id == trial.trial_id and result.status == "ok":
            return tuple(
                str(rank.counters["gpu_uuid"])
                if rank.counters.get("gpu_uuid")
                else _gpu_by_number(nodes.get(rank.host) or run.environment.get("machine") or {}, rank.device)
                for rank in result.ranks
            )
    return ()


def _gpu_by_number(machine: Mapping[str, Any], device: str) -> str | None:
    gpus = {f"cuda:{gpu.get('index')}": gpu.get("uuid") for gpu in machine.get("gpus") or ()}
    uuid = gpus.get(device)
    return None if uuid is None else str(uuid)


def _counter(results: Iterable[Result], trial: Trial, name: str) -> int | None:
    for result in results:
        if result.trial_id == trial.trial_id and result.status == "ok":
            return result.ranks[0].whole(name)
    return None


def _buckets(results: Iterable[Result], trial: Trial) -> tuple[int, ...] | None:
    for result in results:
        if result.trial_id == trial.trial_id and result.status == "ok":
            return result.ranks[0].bucket_bytes
    return None
