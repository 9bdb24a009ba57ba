"""Samples of a made-up host by a made-up clock: when they are taken, and what a window makes of them."""

import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.experiment.machine import Gpu
from scalescope.experiment.trial import Trial
from scalescope.launch.telemetry import sampler as sampler_module
from scalescope.launch.telemetry.load import LoadMeter
from scalescope.launch.telemetry.sampler import Telemetry, gpus_of
from scalescope.results.result import WINDOW, RankRecord
from tests.simulated.launcher import TWO_CORES
from tests.speed import patience

_BEGIN_S = 1_000.0
_AHEAD_S = 1_699_999_000.0  # of the wall clock, which drivers go by


class Host:
    """A /proc tree to write into, and the clock that goes with it."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now_s = _BEGIN_S
        self.busy = self.idle = 0
        self.host(busy=0, idle=0)

    def host(self, *, busy: int, idle: int) -> None:
        """Add to the ticks of all cores since the start."""
        self.busy += busy
        self.idle += idle
        (self.proc / "stat").write_text(f"cpu  {self.busy} 0 0 {self.idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\n")

    def process(self, pid: int, *, ticks: int) -> None:
        """A process that has computed so many ticks; those of its ended children do not count."""
        fields = ["S", *["7"] * 10, f"{ticks}", "0", "5000", "5000", *["9"] * 35]
        (self.proc / f"{pid}").mkdir(exist_ok=True)
        (self.proc / f"{pid}" / "stat").write_text(f"{pid} (python) {' '.join(fields)}\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    clocks = SimpleNamespace(monotonic=lambda: made.now_s, time=lambda: made.now_s + _AHEAD_S)
    monkeypatch.setattr(sampler_module, "time", clocks)
    monkeypatch.setattr(sampler_module, "_TICKS_PER_S", 100)
    return made


def sampler_of(host: Host, uuids: Sequence[str] = (), pids: Sequence[int] = ()) -> Telemetry:
    return Telemetry(uuids, lambda: pids, host.proc)


def sample_at(sampler: Telemetry, host: Host, *moments_s: float) -> None:
    """Take a sample at each of these times after the beginning."""
    for moment in moments_s:
        host.now_s = _BEGIN_S + moment
        sampler.sample()


def between(sampler: Telemetry, begin_s: float, end_s: float) -> dict[str, Any]:
    """What a window holds, its ends counted from the beginning."""
    return sampler.between(_BEGIN_S + begin_s, _BEGIN_S + end_s)


def all_of(sampler: Telemetry) -> dict[str, Any]:
    return sampler.between(0.0, 1e9)


def test_a_sample_too_soon_after_another_is_not_taken(host: Host) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0, 0.0, 0.1, 0.19, 0.25, 0.3, 0.44, 0.5)
    assert all_of(sampler) == {"samples": 3, "interval_s": 0.2, "cpu": {}}  # at 0, 0.25 and 0.5


def test_a_window_has_the_rates_between_its_first_and_its_last_sample(host: Host) -> None:
    sampler = sampler_of(host, pids=[41, 42])
    ticks = {0.0: (500, 500, 7, 0), 1.0: (0, 100, 70, 5), 3.0: (30, 50, 270, 55), 4.0: (9, 1, 900, 900)}
    for moment, (busy, idle, first, second) in ticks.items():
        host.host(busy=busy, idle=idle)
        host.process(41, ticks=first)
        host.process(42, ticks=second)
        sample_at(sampler, host, moment)
    window = between(sampler, 1.0, 3.0)
    assert window["samples"] == 2
    assert window["cpu"] == {
        "host_utilization": 0.375,
        "host_busy_cores": 0.15,
        "rank_busy_cores": [1.0, 0.25],
    }
    assert between(sampler, 0.5, 3.5) == window
    assert between(sampler, 0.0, 4.0)["samples"] == 4
    for empty in (between(sampler, 1.5, 2.5), between(sampler, 3.0, 3.5)):  # none, and one
        assert empty["cpu"] == {} and empty["samples"] < 2


def test_what_cannot_be_read_is_unknown_and_not_idle(host: Host) -> None:
    sampler = sampler_of(host, pids=[41, 42])
    host.process(41, ticks=0)
    host.process(42, ticks=0)
    sample_at(sampler, host, 0.0)
    host.host(busy=100, idle=100)
    (host.proc / "42" / "stat").unlink()
    sample_at(sampler, host, 1.0)
    assert all_of(sampler)["cpu"] == {"host_utilization": 0.5, "host_busy_cores": 1.0}
    host.process(42, ticks=50)
    sample_at(sampler, host, 2.0)
    (host.proc / "stat").unlink()
    host.process(41, ticks=50)
    sample_at(sampler, host, 3.0)
    assert between(sampler, 2.0, 3.0)["cpu"] == {"rank_busy_cores": [0.5, 0.0]}


def test_many_samples_are_thinned_out_and_later_ones_taken_less_often(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_MOST_SAMPLES", 10)
    sampler = sampler_of(host)
    sample_at(sampler, host, *range(10))
    assert (all_of(sampler)["samples"], all_of(sampler)["interval_s"]) == (10, 0.2)
    host.host(busy=30, idle=70)
    sample_at(sampler, host, 10)
    window = all_of(sampler)
    assert (window["samples"], window["interval_s"]) == (6, 0.4)  # at 0, 2, 4, 6, 8 and 10
    assert window["cpu"]["host_utilization"] == 0.3  # both ends of the window are still there
    sample_at(sampler, host, 10.3)
    assert all_of(sampler)["samples"] == 6
    sample_at(sampler, host, 10.5)
    assert all_of(sampler)["samples"] == 7


Samples = dict[str, list[tuple[float, float]]]


class FakeNvml:
    """GPUs that answer from lists: a state each time they are asked, and samples once their time has come."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.problem: str | None = None
        self.states: dict[str, list[dict[str, float]]] = {}
        self.samples: dict[str, Samples] = {}  # at so many seconds after the beginning
        self.pids: tuple[int, ...] | None = None  # that compute on each of them
        self.keeps_s = 1e9
        self.takes_s = 0.0
        self.asked_s: list[float] = []
        self.history_s: list[float] = []
        self.closed = 0

    def read(self, uuid: str) -> dict[str, float]:
        self._asked(self.asked_s)
        left = self.states.get(uuid)
        return left.pop(0) if left else {}

    def processes(self, uuid: str) -> tuple[int, ...] | None:
        return self.pids

    def history(self, uuid: str) -> Samples:
        self._asked(self.history_s)
        now_s = self.host.now_s - _BEGIN_S
        return {
            name: [
                (_BEGIN_S + at_s + _AHEAD_S, value)
                for at_s, value in kept
                if now_s - self.keeps_s < at_s <= now_s
            ]
            for name, kept in self.samples.get(uuid, {}).items()
        }

    def limits(self, uuid: str) -> dict[str, float]:
        return {"power_limit_w": 700.0}

    def close(self) -> None:
        self.closed += 1

    def _asked(self, moments_s: list[float]) -> None:
        moments_s.append(self.host.now_s - _BEGIN_S)
        self.host.now_s += self.takes_s


@pytest.fixture
def gpus(host: Host, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(host)
    monkeypatch.setattr(sampler_module, "Nvml", lambda uuids: made)
    return made


def _temperatures(count: int) -> list[dict[str, float]]:
    return [{"temperature_c": float(number)} for number in range(count)]


def test_states_are_read_every_second_and_driver_samples_every_five_and_at_the_end(
    host: Host, gpus: FakeNvml
) -> None:
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *(0.25 * number for number in range(24)))
    assert gpus.asked_s == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert gpus.history_s == [5.0]
    host.now_s = _BEGIN_S + 7.25
    assert between(sampler, 0.0, 3.0)["samples"] == 13
    assert gpus.history_s == [5.0, 7.25]
    sampler.close()
    assert gpus.closed == 1


def test_a_gpu_s_states_are_kept_raw_with_its_limits(host: Host, gpus: FakeNvml) -> None:
    gpus.states = {
        "a": [{"temperature_c": 50.0, "sm_clock_hz": 3e8}, {"temperature_c": 70.0}, {"temperature_c": 90.0}],
        "b": [{"sm_clock_hz": 1.0}, {"sm_clock_hz": 2.0}, {"sm_clock_hz": 3.0}],
    }
    sampler = sampler_of(host, ["a", "b", "silent"])
    sample_at(sampler, host, 0.0, 1.0, 2.0)
    assert between(sampler, 0.0, 1.0)["gpus"] == {
        "a": {"temperature_c": [50.0, 70.0], "sm_clock_hz": [3e8], "power_limit_w": 700.0},
        "b": {"sm_clock_hz": [1.0, 2.0], "power_limit_w": 700.0},
    }


@pytest.mark.parametrize(
    ("begin_s", "end_s", "expected"),
    [
        (2.5, 2.6, [2.0]),  # too short for a state of its own
        (3.0, 4.0, [2.0, 3.0, 4.0]),
        (0.0, 0.5, [0.0]),
    ],
)
def test_the_state_up_to_a_second_before_a_window_is_the_window_s_too(
    host: Host, gpus: FakeNvml, begin_s: float, end_s: float, expected: list[float]
) -> None:
    gpus.states = {"a": _temperatures(9)}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *range(9))
    assert between(sampler, begin_s, end_s)["gpus"]["a"]["temperature_c"] == expected


def test_samples_of_the_driver_count_where_all_that_they_are_a_mean_of_lies_in_the_window(
    host: Host, gpus: FakeNvml
) -> None:
    gpus.samples = {
        "a": {
            "power_w": [(1.999, 1.0), (2.001, 2.0), (2.5, 0.0), (3.999, 4.0), (4.001, 5.0)],
            "utilization": [(2.001, 0.1), (2.199, 0.2), (2.201, 0.0), (3.999, 0.4), (4.1, 0.5)],
        },
        "b": {"power_w": [(3.0, 90.0)], "utilization": [(9.0, 0.5)]},
        "c": {"power_w": [(1.0, 90.0)], "utilization": []},
    }
    sampler = sampler_of(host, ["a", "b", "c"])
    sample_at(sampler, host, 6.0)
    assert between(sampler, 2.0, 4.0)["gpus"] == {  # an idle GPU is known to be idle
        "a": {"power_w": [2.0, 0.0, 4.0], "utilization": [0.0, 0.4], "power_limit_w": 700.0},
        "b": {"power_w": [90.0], "power_limit_w": 700.0},
    }


def test_a_long_window_has_every_driver_sample_once_even_if_the_driver_drops_them(
    host: Host, gpus: FakeNvml
) -> None:
    written = [(0.5 * number, 100.0 + number) for number in range(1, 41)]
    gpus.samples = {"a": {"power_w": written}}
    gpus.keeps_s = 7.0  # longer than they are apart, so that some are fetched twice
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *(0.25 * number for number in range(81)))
    for _ in range(2):  # asked again it is the same
        assert all_of(sampler)["gpus"]["a"]["power_w"] == [value for _, value in written]


def test_a_long_run_keeps_a_bounded_number_of_driver_samples(
    host: Host, gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_MOST_SAMPLES", 10)
    gpus.samples = {"a": {"power_w": [(0.5 * number, float(number)) for number in range(1, 201)]}}
    gpus.keeps_s = 6.0
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *range(101))
    kept = all_of(sampler)["gpus"]["a"]["power_w"]
    assert 5 <= len(kept) <= 10
    assert max(kept) > 150.0 and min(kept) < 50.0  # from all of the run


def test_the_time_spent_querying_gpus_in_the_window_is_reported(host: Host, gpus: FakeNvml) -> None:
    gpus.takes_s = 0.01

    def slow() -> list[int]:
        host.now_s += 0.25  # reading processes does not count
        return []

    sampler = Telemetry(["a", "b"], slow, host.proc)
    sample_at(sampler, host, 0.0, 1.5, 2.0, 3.0, 6.0)  # at 2.0 they are left alone
    assert len(gpus.asked_s) == 2 * 4
    assert between(sampler, 1.0, 4.5)["asking_gpus_s"] == pytest.approx(2 * 2 * 0.01)
    assert between(sampler, 2.4, 2.9)["asking_gpus_s"] == 0.0
    assert between(sampler, 5.5, 7.0)["asking_gpus_s"] == pytest.approx(2 * (0.01 + 0.01))  # and samples
    assert between(sampler, 7.0, 9.0)["asking_gpus_s"] == 0.0  # asked at the end, outside


def test_masks_become_shares_of_the_states_that_had_one(host: Host, gpus: FakeNvml) -> None:
    masks = [0x4 | 0x20, 0x4, 0x1, 0x4]
    gpus.states = {
        "a": [{"throttle_mask": float(mask)} for mask in masks] + [{"temperature_c": 5.0}],
        "never slowed": [{"throttle_mask": 0.0}],
        "never asked": [{"temperature_c": 5.0}],
    }
    sampler = sampler_of(host, list(gpus.states))
    sample_at(sampler, host, 0.0, 1.0, 2.0, 3.0, 4.0)
    figures = all_of(sampler)["gpus"]
    assert figures["a"]["slowdowns"] == {"power cap": 0.75, "thermal (software)": 0.25}
    assert "throttle_mask" not in figures["a"]
    assert figures["never slowed"]["slowdowns"] == {}
    assert "slowdowns" not in figures["never asked"]


def test_a_gpu_that_cannot_be_read_is_missing_with_the_reason(host: Host, gpus: FakeNvml) -> None:
    gpus.problem = "NVML says no"
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 0.0)
    expected = {"interval_s": 0.2, "gpu_problem": "NVML says no", "gpus": {}, "asking_gpus_s": 0.0, "cpu": {}}
    assert all_of(sampler) == {"samples": 1, **expected}  # its limits alone are not a reading


def _records(*windows: Sequence[float | None]) -> list[RankRecord]:
    return [
        RankRecord(
            rank=rank, host="h", device="cpu", placement="", counters=dict(zip(WINDOW, window, strict=False))
        )
        for rank, window in enumerate(windows)
    ]


def test_the_first_rank_s_marks_cut_the_window_out(host: Host) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, *range(10))
    telemetry = sampler.of_window(_records((1_002.0, 1_004.0), (1_000.0, 1_009.0)))
    assert telemetry == sampler.between(1_002.0, 1_004.0)
    assert telemetry["samples"] == 3


@pytest.mark.parametrize("window", [(), (1_000.0,), (None, 1_001.0), (None, None)])
def test_ranks_without_window_times_have_no_telemetry(host: Host, window: tuple[float | None, ...]) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0, 1.0)
    assert sampler.of_window(_records(window, (1_000.0, 1_000.0))) == {}
    assert sampler.of_window([]) == {}


def test_a_window_too_short_for_two_readings_takes_those_around_it(host: Host) -> None:
    (host.proc / "loadavg").write_text("1.5 1 1 1/2 3")
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0, 1.0)
    host.now_s = _BEGIN_S + 1.6
    assert sampler.of_window(_records((_BEGIN_S + 1.1, _BEGIN_S + 1.4)))["load"] == {"load_average": 1.5}
    assert sampler.of_window(_records(()))["load"] == {"load_average": 1.5}  # without marks: of all of it
    (host.proc / "loadavg").write_text("9.0 1 1 1/2 3")
    sample_at(sampler, host, 3.0)
    assert between(sampler, 0.0, 1.0)["load"] == {"load_average": 1.5}  # two readings are enough


def test_a_thread_samples_during_the_wait_and_ends_with_it(host: Host) -> None:
    looked = threading.Event()

    def pids() -> list[int]:
        looked.set()
        return []

    sampler = Telemetry((), pids, host.proc)
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="an answer that failed"), sampler.sampling():
        assert looked.wait(patience())
        raise ValueError("an answer that failed")
    assert set(threading.enumerate()) == before
    assert all_of(sampler)["samples"] == 1  # the clock stands still


@pytest.mark.parametrize(
    ("settings", "gpus", "expected"),
    [
        ({"device": "cpu", "world_size": 2}, 4, []),
        ({"device": "cuda", "world_size": 2}, 0, []),
        ({"device": "cuda", "world_size": 3}, 4, ["id-0", "id-1", "id-2"]),
        ({"device": "cuda", "world_size": 8}, 2, ["id-0", "id-1"]),  # ranks share
        ({"device": "cuda", "world_size": 4, "split_gpu": 4}, 4, ["id-0"]),
    ],
)
def test_the_gpus_of_a_trial_are_those_its_ranks_use(
    settings: dict[str, Any], gpus: int, expected: list[str]
) -> None:
    made = tuple(Gpu(index=n, name="made up", memory_bytes=1, uuid=f"id-{n}") for n in range(gpus))
    machine = dataclasses.replace(TWO_CORES, gpus=made)
    assert gpus_of(Trial(settings={"split_gpu": None, **settings}), machine) == expected


@pytest.mark.parametrize(
    ("pids", "options", "others"),
    [
        ((41,), {}, 0),
        ((42, 90, 91), {}, 2),
        ((7, 8), {}, None),  # ours is not among them: in a container the driver shows the ids of its host
        ((), {}, None),
        (None, {}, None),
        ((41, 90), {"shows_processes": False}, None),  # a daemon's processes stand for ours
    ],
)
def test_processes_of_others_on_a_gpu_are_those_that_are_not_ours(
    host: Host, gpus: FakeNvml, pids: tuple[int, ...] | None, options: dict[str, bool], others: int | None
) -> None:
    gpus.pids = pids
    gpus.states = {"a": _temperatures(9)}
    (host.proc / "41/task/41").mkdir(parents=True, exist_ok=True)
    (host.proc / "41/task/41/children").write_text("42")
    telemetry = Telemetry(["a"], proc=host.proc, meter=LoadMeter(41, host.proc), **options)
    sample_at(telemetry, host, 0.0, 1.0, 2.0, 3.0)
    assert between(telemetry, 0.5, 3.5).get("load", {}).get("gpu_processes") == others


@pytest.mark.parametrize(
    ("mask", "clocks", "load"),
    [
        (0x20, (1e9, 2e9, 2e9, 1.4e9), {"gpu_slowed": 1.0, "gpu_clock_share": 0.7}),
        (0x20, (1e9, 2e9, 1.4e9), {"gpu_slowed": 1.0}),  # two readings do not tell a falling clock
        (0x04, (1e9, 2e9), {"gpu_slowed": 0.0}),  # a power cap is not heat
    ],
)
def test_a_clock_that_falls_inside_the_window_and_heat_are_load(
    host: Host, gpus: FakeNvml, mask: int, clocks: tuple[float, ...], load: dict[str, float]
) -> None:
    gpus.states = {"a": [{"sm_clock_hz": clock, "throttle_mask": float(mask)} for clock in clocks]}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *range(len(clocks)))  # the first is before the window
    assert between(sampler, 0.5, 4.5)["load"] == pytest.approx(load)
