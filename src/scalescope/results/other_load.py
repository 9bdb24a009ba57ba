"""Other load: what other processes used while ranks measured, and whether that disturbed them.

A launch is judged by this evidence alone, never by its own speed (decision 17). What the system does not
show is None: then nothing is known, and nothing is claimed.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_CORES = 0.3  # used by others: an idle system uses less
_LEAST_SHARE = 0.02  # of the cores, on large machines
_WAITED = 0.05  # of the time in which a rank wanted a core, it had none
_STOLEN = 0.05  # of the cores' time, by other machines of the same host
# Reasons that make a GPU slower from one minute to the next; a power cap under full load does not vary.
HEAT = ("thermal (software)", "thermal (hardware)", "hardware slowdown", "power brake")
_SLOWED = 0.1  # of the readings of a GPU, heat or its power supply held it back
_CLOCK_FELL = 0.8  # lowest over highest clock: less than a power limit alone varies it


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoad:
    """Means over the time that ranks measured, or before it; None where it is unknown."""

    cores: int | None = None  # that these ranks may use
    other_cores: float | None = None  # of these, used by processes that are not ours
    stolen_cores: float | None = None  # of these, used by other machines of the same host
    rank_waits: tuple[float, ...] | None = None  # share of the time each rank wanted a core and had none
    pressure: float | None = None  # share of the time in which any process waited for a core
    load_average: float | None = None
    gpu_processes: int | None = None  # of others, on the GPUs of the ranks
    gpu_utilization: float | None = None  # before ranks started
    gpu_slowed: float | None = None  # share of readings with heat or a failing power supply
    gpu_clock_share: float | None = None  # lowest over highest clock

    @property
    def is_present(self) -> bool:
        """Whether others used so much that figures may not be the machine's own."""
        return self.uses_cores or self.is_stolen_from or self.uses_gpus

    @property
    def uses_cores(self) -> bool:
        if self.other_cores is None:
            return False
        return self.other_cores >= max(LEAST_CORES, _LEAST_SHARE * (self.cores or 0))

    @property
    def is_stolen_from(self) -> bool:
        return self.stolen_cores is not None and self.stolen_cores >= _STOLEN * (self.cores or 1)

    @property
    def uses_gpus(self) -> bool:
        return bool(self.gpu_processes)

    @property
    def longest_wait(self) -> float | None:
        """Of all ranks, the largest share of time without a core."""
        return max(self.rank_waits) if self.rank_waits else None

    @property
    def delays_ranks(self) -> bool:
        """Whether ranks had to wait for cores that others used; assumed where waiting is not shown."""
        wait = self.longest_wait
        return self.is_stolen_from or (self.uses_cores and (wait is None or wait >= _WAITED))

    @property
    def slows_gpus(self) -> bool:
        """Whether heat or the power supply held GPUs back."""
        clock = self.gpu_clock_share
        return (self.gpu_slowed or 0.0) >= _SLOWED or (clock is not None and clock < _CLOCK_FELL)

    @property
    def disturbs(self) -> bool:
        """Whether a launch under this load does not show the machine's own performance."""
        return self.delays_ranks or self.uses_gpus or self.slows_gpus

    def demand_of_others(self, threads: int) -> float:
        """Cores that others would use if this many threads of ours left them any.

        Where all cores are busy they are shared in proportion: others that want d of C cores beside n threads
        get d·C/(d + n).
        """
        used, stolen = self.other_cores or 0.0, self.stolen_cores or 0.0
        cores = max(1.0, (self.cores or 1) - stolen)
        if used + threads <= cores:
            return used + stolen
        left = max(cores - used, 0.25 * cores)  # more than three others of ours each are not told apart
        return max(used, used * threads / left) + stolen

    def to_json(self) -> dict[str, Any]:
        """What is known, as plain values."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, raw: object) -> "OtherLoad":
        """Where nothing could be sampled, everything is unknown."""
        if not isinstance(raw, Mapping):
            return cls()
        known = {name: raw[name] for name in cls.__dataclass_fields__ if raw.get(name) is not None}
        if "rank_waits" in known:
            known["rank_waits"] = tuple(known["rank_waits"])
        return cls(**known)
