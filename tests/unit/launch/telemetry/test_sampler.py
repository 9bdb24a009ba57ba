"""Looks at a made-up host by a made-up clock: when they are taken, and what a window makes of them."""

import dataclasses
import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.experiment.machine import Gpu, Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.attached import launcher as attached
from scalescope.launch.fake import TWO_CORES
from scalescope.launch.probing import Node
from scalescope.launch.telemetry import sampler as sampler_module
from scalescope.launch.telemetry.load import HostTicks, LoadMeter, host_ticks, process_ticks
from scalescope.launch.telemetry.sampler import Telemetry, gpus_of
from scalescope.results.ranks.rank_placement import RankPlacement
from scalescope.results.result import WINDOW, RankRecord
from scalescope.results.run_folder import RunFolder
from tests.speed import patience

_TICKS_PER_S = 100
_BEGIN_S = 1_000.0
_AHEAD_S = 1_699_999_000.0  # of the wall clock, which drivers go by


class Host:
    """A /proc tree to write into, and the clock that goes with it."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now_s = _BEGIN_S
        self.busy = self.idle = self.waiting = 0
        self.host(busy=0, idle=0)

    @property
    def wall_s(self) -> float:
        return self.now_s + _AHEAD_S

    def host(self, *, busy: int, idle: int, waiting: int = 0) -> None:
        """Add to the ticks of all cores since the start."""
        self.busy += busy
        self.idle += idle
        self.waiting += waiting
        # user nice system idle iowait irq softirq steal guest guest_nice; guests are in user already
        ticks = [self.busy, 0, 0, self.idle, self.waiting, 0, 0, 0, self.busy, 0]
        lines = [f"cpu  {' '.join(map(str, ticks))}", "cpu0 1 2 3 4 5 6 7 8 0 0", "intr 12345"]
        (self.proc / "stat").write_text("\n".join(lines) + "\n")

    def process(self, pid: int, *, user: int, system: int, name: str = "python") -> None:
        """A process that has computed so many ticks; those of its ended children do not count."""
        fields = ["S", *["7"] * 10, f"{user}", f"{system}", "5000", "5000", *["9"] * 35]
        (self.proc / f"{pid}").mkdir(exist_ok=True)
        (self.proc / f"{pid}" / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")

    def end(self, pid: int) -> None:
        (self.proc / f"{pid}" / "stat").unlink()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    clocks = SimpleNamespace(monotonic=lambda: made.now_s, time=lambda: made.wall_s)
    monkeypatch.setattr(sampler_module, "time", clocks)
    monkeypatch.setattr(sampler_module, "_TICKS_PER_S", _TICKS_PER_S)
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
    assert (all_of(sampler)["looks"], all_of(sampler)["interval_s"]) == (3, 0.2)  # at 0, 0.25 and 0.5


def test_a_window_holds_the_samples_between_its_ends(host: Host) -> None:
    sampler = sampler_of(host, pids=[41])
    for second, (busy, idle, rank_ticks) in enumerate([(0, 0, 0), (100, 0, 100), (30, 70, 20), (90, 10, 60)]):
        host.host(busy=busy, idle=idle)
        host.process(41, user=rank_ticks + second * 1_000, system=0)
        sample_at(sampler, host, float(second))
    window = sampler.between(1_001.0, 1_002.0)
    assert window["looks"] == 2
    assert window["cpu"] == {"host_utilization": 0.3, "rank_busy_cores": [9.2]}
    assert sampler.between(1_000.5, 1_002.5) == window
    assert sampler.between(1_000.0, 1_003.0)["looks"] == 4


def test_the_host_s_share_and_the_ranks_cores_are_what_was_computed_in_the_window(host: Host) -> None:
    sampler = sampler_of(host, pids=[41, 42])
    host.host(busy=9_999, idle=5)
    host.process(41, user=500, system=70)
    host.process(42, user=0, system=0)
    sample_at(sampler, host, 0.0)
    host.host(busy=300, idle=500)
    host.process(41, user=680, system=90)
    host.process(42, user=10, system=40)
    sample_at(sampler, host, 2.0)
    assert all_of(sampler)["cpu"] == {"host_utilization": 0.375, "rank_busy_cores": [1.0, 0.25]}


def test_waiting_for_a_disk_is_idle(host: Host) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0)
    host.host(busy=100, idle=100, waiting=200)
    sample_at(sampler, host, 1.0)
    assert all_of(sampler)["cpu"] == {"host_utilization": 0.25}


def test_all_kinds_of_work_are_busy_but_what_other_machines_took_and_guests_are_not_counted_twice(
    tmp_path: Path,
) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 4 1000 2000 8 16 32 1 0\n")
    assert host_ticks(tmp_path / "stat") == HostTicks(cores=1, busy=31, steal=32, total=3_063)


@pytest.mark.parametrize("name", ["python", "pt main thread", "a) R 1 2 (b", "))((", ""])
def test_a_process_may_have_any_name(host: Host, name: str) -> None:
    host.process(41, user=30, system=12, name=name)
    assert process_ticks(host.proc / "41" / "stat") == 42


def test_what_is_gone_or_torn_has_no_ticks(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    assert (host_ticks(path), process_ticks(path)) == (None, None)
    for text in ("", "cpu one two\n41 (python) S 1"):
        path.write_text(text)
        assert (host_ticks(path), process_ticks(path)) == (None, None)


def test_a_process_that_vanished_is_unknown_and_not_idle(host: Host) -> None:
    sampler = sampler_of(host, pids=[41, 42])
    host.process(41, user=0, system=0)
    host.process(42, user=0, system=0)
    sample_at(sampler, host, 0.0)
    host.host(busy=100, idle=100)
    host.end(42)
    sample_at(sampler, host, 1.0)
    assert all_of(sampler)["cpu"] == {"host_utilization": 0.5}


def test_an_unreadable_host_is_unknown_and_its_ranks_are_known(host: Host) -> None:
    (host.proc / "stat").unlink()
    sampler = sampler_of(host, pids=[41])
    host.process(41, user=0, system=0)
    sample_at(sampler, host, 0.0)
    host.process(41, user=50, system=0)
    sample_at(sampler, host, 1.0)
    assert all_of(sampler)["cpu"] == {"rank_busy_cores": [0.5]}


def test_a_host_whose_ticks_stand_still_is_unknown(host: Host) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0, 1.0)
    assert all_of(sampler)["cpu"] == {}


def test_one_sample_gives_no_rates(host: Host) -> None:
    sampler = sampler_of(host, pids=[41])
    host.process(41, user=10, system=0)
    sample_at(sampler, host, 0.0)
    assert all_of(sampler) == {"looks": 1, "interval_s": 0.2, "cpu": {}}


def test_without_a_sample_in_the_window_there_are_no_figures(host: Host) -> None:
    sampler = sampler_of(host)
    assert all_of(sampler) == {"looks": 0, "interval_s": 0.2, "cpu": {}}
    sample_at(sampler, host, 0.0, 5.0)
    assert between(sampler, 1.0, 4.0) == {"looks": 0, "interval_s": 0.2, "cpu": {}}


def test_many_samples_are_thinned_out_and_later_ones_taken_less_often(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_MOST_SAMPLES", 10)
    sampler = sampler_of(host)
    sample_at(sampler, host, *range(10))
    assert (all_of(sampler)["looks"], all_of(sampler)["interval_s"]) == (10, 0.2)
    host.host(busy=30, idle=70)
    sample_at(sampler, host, 10)
    window = all_of(sampler)
    assert (window["looks"], window["interval_s"]) == (6, 0.4)  # at 0, 2, 4, 6, 8 and 10
    assert window["cpu"] == {"host_utilization": 0.3}  # both ends of the window are still there
    assert sampler.between(1_002.5, 1_003.5)["looks"] == 0
    sample_at(sampler, host, 10.3)
    assert all_of(sampler)["looks"] == 6
    sample_at(sampler, host, 10.5)
    assert all_of(sampler)["looks"] == 7


def test_a_long_run_keeps_a_bounded_number_of_cpu_samples(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_MOST_SAMPLES", 10)
    sampler = sampler_of(host)
    sample_at(sampler, host, *(0.25 * number for number in range(1_000)))
    assert 5 <= all_of(sampler)["looks"] <= 10
    assert all_of(sampler)["interval_s"] == pytest.approx(0.2 * 2**7)  # ten of these are more than 250 s


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
        left = self._asked(self.asked_s) and self.states.get(uuid)
        return left.pop(0) if left else {}

    def processes(self, uuid: str) -> tuple[int, ...] | None:
        return self.pids

    def history(self, uuid: str) -> Samples:
        if not self._asked(self.history_s):
            return {}
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
        return {} if self.closed else {"power_limit_w": 700.0}

    def close(self) -> None:
        self.closed += 1

    def _asked(self, moments_s: list[float]) -> bool:
        moments_s.append(self.host.now_s - _BEGIN_S)
        self.host.now_s += self.takes_s
        return not self.closed


@pytest.fixture
def gpus(host: Host, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(host)
    monkeypatch.setattr(sampler_module, "Nvml", lambda uuids: made)
    return made


def _temperatures(count: int) -> list[dict[str, float]]:
    return [{"temperature_c": float(number)} for number in range(count)]


def test_gpus_are_queried_once_a_second_and_cpus_more_often(host: Host, gpus: FakeNvml) -> None:
    gpus.states = {"a": _temperatures(9)}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *(0.25 * number for number in range(12)))
    assert gpus.asked_s == [0.0, 1.0, 2.0]
    assert gpus.history_s == []
    window = between(sampler, 0.0, 3.0)
    assert (window["looks"], window["interval_s"]) == (12, 0.2)
    assert window["gpus"]["a"]["temperature_c"] == [0.0, 1.0, 2.0]


def test_a_gpu_s_states_are_kept_raw_with_its_limits(host: Host, gpus: FakeNvml) -> None:
    gpus.states = {
        "a": [{"temperature_c": 50.0, "sm_clock_hz": 3e8}, {"temperature_c": 70.0}, {"temperature_c": 90.0}],
        "b": [{"sm_clock_hz": 1.0}, {"sm_clock_hz": 2.0}, {"sm_clock_hz": 3.0}],
    }
    sampler = sampler_of(host, ["a", "b"])
    sample_at(sampler, host, 0.0, 1.0, 2.0)
    assert between(sampler, 0.0, 1.0)["gpus"] == {
        "a": {"temperature_c": [50.0, 70.0], "sm_clock_hz": [3e8], "power_limit_w": 700.0},
        "b": {"sm_clock_hz": [1.0, 2.0], "power_limit_w": 700.0},
    }


@pytest.mark.parametrize(
    ("begin_s", "end_s", "expected"),
    [
        (2.5, 3.5, [2.0, 3.0]),
        (2.5, 2.6, [2.0]),  # too short for a state of its own
        (2.01, 2.99, [2.0]),
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


def test_a_gpu_without_a_state_or_a_sample_in_the_window_is_missing(host: Host, gpus: FakeNvml) -> None:
    gpus.states = {"a": _temperatures(2)}
    gpus.samples = {"a": {"power_w": [(0.5, 100.0), (9.5, 200.0)]}}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 0.0, 9.0)
    assert between(sampler, 3.0, 8.0)["gpus"] == {}


def test_samples_of_the_driver_count_inside_the_window_only(host: Host, gpus: FakeNvml) -> None:
    moments = (0.5, 1.999, 2.001, 2.5, 3.999, 4.001, 5.5)
    gpus.samples = {"a": {"power_w": [(at_s, at_s * 100) for at_s in moments]}}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 6.0)
    figures = between(sampler, 2.0, 4.0)["gpus"]
    assert figures == {"a": {"power_w": [2.001 * 100, 250.0, 3.999 * 100], "power_limit_w": 700.0}}


def test_use_counts_where_all_that_a_sample_is_a_mean_of_lies_in_the_window(
    host: Host, gpus: FakeNvml
) -> None:
    moments = (1.9, 2.001, 2.199, 2.201, 2.4, 3.999, 4.001, 4.2)
    gpus.samples = {"a": {"utilization": [(at_s, at_s / 10) for at_s in moments]}}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 6.0)
    figures = between(sampler, 2.0, 4.0)["gpus"]["a"]
    assert figures["utilization"] == [2.201 / 10, 2.4 / 10, 3.999 / 10]


def test_samples_of_each_gpu_are_its_own(host: Host, gpus: FakeNvml) -> None:
    gpus.samples = {
        "a": {"utilization": [(1.0, 0.1), (2.0, 0.2)], "power_w": [(1.0, 10.0)]},
        "b": {"utilization": [(1.0, 0.9)], "power_w": [(1.0, 90.0), (2.0, 80.0)]},
    }
    sampler = sampler_of(host, ["a", "b"])
    sample_at(sampler, host, 3.0)
    assert between(sampler, 0.0, 3.0)["gpus"] == {
        "a": {"utilization": [0.1, 0.2], "power_w": [10.0], "power_limit_w": 700.0},
        "b": {"utilization": [0.9], "power_w": [90.0, 80.0], "power_limit_w": 700.0},
    }


def test_driver_samples_are_fetched_every_five_seconds_and_at_the_end(host: Host, gpus: FakeNvml) -> None:
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *(0.5 * number for number in range(35)))
    assert gpus.history_s == [5.0, 10.0, 15.0]
    host.now_s = _BEGIN_S + 17.25
    between(sampler, 0.0, 16.0)
    assert gpus.history_s == [5.0, 10.0, 15.0, 17.25]


def test_a_long_window_has_every_driver_sample_once_even_if_the_driver_drops_them(
    host: Host, gpus: FakeNvml
) -> None:
    written = [(0.5 * number, 100.0 + number) for number in range(1, 41)]
    gpus.samples = {"a": {"power_w": written}}
    gpus.keeps_s = 7.0  # longer than they are apart, so that some are fetched twice
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *(0.25 * number for number in range(81)))
    assert all_of(sampler)["gpus"]["a"]["power_w"] == [value for _, value in written]
    assert all_of(sampler)["gpus"]["a"]["power_w"] == [value for _, value in written]  # asked again


def test_driver_samples_dropped_before_being_fetched_are_missing(host: Host, gpus: FakeNvml) -> None:
    gpus.samples = {"a": {"power_w": [(float(second), float(second)) for second in range(1, 11)]}}
    gpus.keeps_s = 2.5
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *range(11))
    assert all_of(sampler)["gpus"]["a"]["power_w"] == [3.0, 4.0, 5.0, 8.0, 9.0, 10.0]


@pytest.mark.parametrize(
    "samples",
    [{}, {"utilization": [], "power_w": []}, {"utilization": [(9.0, 0.5)], "power_w": [(0.1, 5.0)]}],
)
def test_without_driver_samples_in_the_window_figures_are_missing_and_not_zero(
    host: Host, gpus: FakeNvml, samples: Samples
) -> None:
    gpus.states = {"a": _temperatures(1)}
    gpus.samples = {"a": samples}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 1.0)
    host.now_s = _BEGIN_S + 10.0
    assert between(sampler, 0.5, 8.0)["gpus"] == {"a": {"temperature_c": [0.0], "power_limit_w": 700.0}}


def test_an_idle_gpu_is_known_to_be_idle(host: Host, gpus: FakeNvml) -> None:
    gpus.samples = {"a": {"utilization": [(1.0, 0.0)], "power_w": [(1.0, 0.0)]}}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 2.0)
    figures = between(sampler, 0.0, 2.0)["gpus"]["a"]
    assert (figures["utilization"], figures["power_w"]) == ([0.0], [0.0])


def test_many_states_are_thinned_out_and_later_ones_asked_for_less_often(
    host: Host, gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_MOST_SAMPLES", 10)
    gpus.states = {"a": _temperatures(20)}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *range(11))
    assert all_of(sampler)["gpus"]["a"]["temperature_c"] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    # The state before a window may be as old as states are apart.
    assert between(sampler, 5.9, 6.5)["gpus"]["a"]["temperature_c"] == [4.0, 6.0]
    assert between(sampler, 7.9, 7.95)["gpus"]["a"]["temperature_c"] == [6.0]
    sample_at(sampler, host, 11.0, 12.0, 13.0, 14.0)
    assert gpus.asked_s[-3:] == [10.0, 12.0, 14.0]


def test_thinning_cpu_samples_leaves_the_states_of_gpus_alone(
    host: Host, gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_MOST_SAMPLES", 10)
    gpus.states = {"a": _temperatures(9)}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *(0.25 * number for number in range(13)))
    window = all_of(sampler)
    assert (window["looks"], window["interval_s"]) == (7, 0.4)  # at 0, 0.5, ... 2.5 and 3
    assert window["gpus"]["a"]["temperature_c"] == [0.0, 1.0, 2.0, 3.0]


def test_a_long_run_keeps_a_bounded_number_of_samples(
    host: Host, gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_MOST_SAMPLES", 10)
    gpus.samples = {"a": {"power_w": [(0.5 * number, 1.0) for number in range(1, 2_001)]}}
    gpus.keeps_s = 6.0
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, *range(1_001))
    assert 1 <= len(all_of(sampler)["gpus"]["a"]["power_w"]) <= 500


def test_the_time_spent_querying_gpus_in_the_window_is_reported(host: Host, gpus: FakeNvml) -> None:
    gpus.takes_s = 0.01
    sampler = sampler_of(host, ["a", "b"])
    sample_at(sampler, host, 0.0, 1.5, 2.0, 3.0, 4.5)  # at 2.0 they are left alone
    assert len(gpus.asked_s) == 2 * 4
    assert between(sampler, 1.0, 3.5)["asking_gpus_s"] == pytest.approx(2 * 2 * 0.01)
    assert between(sampler, 1.6, 2.5)["asking_gpus_s"] == 0.0
    assert between(sampler, 5.0, 9.0)["asking_gpus_s"] == 0.0  # asked at the end, outside


def test_fetching_driver_samples_counts_as_querying_gpus(host: Host, gpus: FakeNvml) -> None:
    gpus.takes_s = 0.01
    sampler = sampler_of(host, ["a", "b"])
    sample_at(sampler, host, 4.0, 6.0)
    assert between(sampler, 5.5, 6.5)["asking_gpus_s"] == pytest.approx(2 * (0.01 + 0.01))


def test_reading_processes_does_not_count_as_querying_gpus(host: Host, gpus: FakeNvml) -> None:
    gpus.takes_s = 0.01

    def slow() -> list[int]:
        host.now_s += 0.25
        return []

    sampler = Telemetry(["a"], slow, host.proc)
    sample_at(sampler, host, 0.0, 0.5)
    assert between(sampler, 0.0, 0.75)["asking_gpus_s"] == pytest.approx(0.01)


def test_without_gpus_none_is_queried_or_reported(host: Host, gpus: FakeNvml) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, *range(10))
    assert set(all_of(sampler)) == {"looks", "interval_s", "cpu"}
    assert (gpus.asked_s, gpus.history_s) == ([], [])


def test_masks_become_shares_of_the_states_that_had_one(host: Host, gpus: FakeNvml) -> None:
    masks = [0x4 | 0x20, 0x4, 0x1, 0x4]
    gpus.states = {"a": [{"throttle_mask": float(mask)} for mask in masks] + [{"temperature_c": 5.0}]}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 0.0, 1.0, 2.0, 3.0, 4.0)
    (figures,) = all_of(sampler)["gpus"].values()
    assert figures["slowdowns"] == {"power cap": 0.75, "thermal (software)": 0.25}
    assert "throttle_mask" not in figures


def test_a_gpu_without_slowdowns_differs_from_one_never_queried(host: Host, gpus: FakeNvml) -> None:
    gpus.states = {"a": [{"throttle_mask": 0.0}], "b": [{"temperature_c": 5.0}]}
    sampler = sampler_of(host, ["a", "b"])
    sample_at(sampler, host, 0.0)
    figures = all_of(sampler)["gpus"]
    assert figures["a"]["slowdowns"] == {}
    assert "slowdowns" not in figures["b"]


def test_a_gpu_that_cannot_be_read_is_missing_with_the_reason(host: Host, gpus: FakeNvml) -> None:
    gpus.problem = "NVML says no"
    sampler = sampler_of(host, ["a"])
    expected = {"interval_s": 0.2, "gpu_problem": "NVML says no", "gpus": {}, "asking_gpus_s": 0.0, "cpu": {}}
    assert all_of(sampler) == {"looks": 0, **expected}
    sample_at(sampler, host, 0.0)
    assert all_of(sampler) == {"looks": 1, **expected}  # its limits alone are not a reading


def test_closing_lets_go_of_the_gpus(host: Host, gpus: FakeNvml) -> None:
    sampler_of(host, ["a"]).close()
    assert gpus.closed == 1


class Child:
    """The worker under a launcher that is a rank itself: it answers when it was asked for a trial."""

    def __init__(self, host: Host, answer: dict[str, Any]) -> None:
        self.stdin = io.BytesIO()
        self.stdout = self
        self._host = host
        self._answer = answer

    def readline(self) -> bytes:
        self._host.now_s = _BEGIN_S + 4.0
        return json.dumps(self._answer).encode() + b"\n"


class Silent:
    """A watcher that does nothing."""

    def placed(self, ranks: Sequence[RankPlacement]) -> None:
        pass

    def advanced(self, fraction: float) -> None:
        pass


def test_the_gpus_of_attached_ranks_are_sampled(
    host: Host, gpus: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = dict(zip(WINDOW, (_BEGIN_S + 1.0, _BEGIN_S + 3.0), strict=True))
    answer = {"answers": [{"rank": 0, "state": "done", "counters": window}]}
    gpus.samples = {"id-0": {"utilization": [(2.0, 0.5)], "power_w": [(2.0, 300.0)]}}
    monkeypatch.setattr(attached, "start_worker", lambda context, **_: Child(host, answer))
    node = Node(machine=_machine(1), system={}, ranks=(0,), first_rank=0)
    monkeypatch.setattr(attached.AttachedLauncher, "_probed_nodes", lambda self: {"h": node})
    launcher = attached.AttachedLauncher(attached.RankContext(0, 1))
    settings = {"benchmark": "train", "device": "cuda", "world_size": 1, "split_gpu": None}
    limits = Measuring(**{setting.name: setting.default for setting in settings_of(Measuring)})
    (tmp_path / "ranks").mkdir()
    outcome = launcher.launch(Trial(settings=settings), 0, RunFolder(tmp_path), limits, Silent())
    assert gpus.closed == 1
    assert outcome.telemetry["gpus"] == {
        "id-0": {"utilization": [0.5], "power_w": [300.0], "power_limit_w": 700.0}
    }


def _records(*counters: dict[str, Any]) -> list[RankRecord]:
    return [
        RankRecord(rank=rank, host="h", device="cpu", placement="", counters=counter)
        for rank, counter in enumerate(counters)
    ]


def test_the_first_rank_s_marks_cut_the_window_out(host: Host) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, *range(10))
    records = _records(
        dict(zip(WINDOW, (1_002.0, 1_004.0), strict=True)), dict(zip(WINDOW, (1_000.0, 1_009.0), strict=True))
    )
    assert sampler.of_window(records) == sampler.between(1_002.0, 1_004.0)
    assert sampler.of_window(records)["looks"] == 3


@pytest.mark.parametrize(
    "counters", [{}, {WINDOW[0]: 1_000.0}, {WINDOW[1]: 1_001.0}, dict.fromkeys(WINDOW), {"parameters": 7.0}]
)
def test_ranks_without_window_times_have_no_telemetry(host: Host, counters: dict[str, Any]) -> None:
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0, 1.0)
    assert sampler.of_window(_records(counters, dict.fromkeys(WINDOW, 1_000.0))) == {}
    assert sampler.of_window([]) == {}


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
    assert all_of(sampler)["looks"] == 1  # the clock stands still


def _machine(gpus: int) -> Machine:
    made = tuple(Gpu(index=n, name="made up", memory_bytes=1, uuid=f"id-{n}") for n in range(gpus))
    return dataclasses.replace(TWO_CORES, gpus=made)


@pytest.mark.parametrize(
    ("settings", "gpus", "expected"),
    [
        ({"device": "cpu", "world_size": 2}, 4, []),
        ({"device": "cuda", "world_size": 2}, 0, []),
        ({"device": "cuda", "world_size": 1}, 4, ["id-0"]),
        ({"device": "cuda", "world_size": 3}, 4, ["id-0", "id-1", "id-2"]),
        ({"device": "cuda", "world_size": 8}, 2, ["id-0", "id-1"]),  # ranks share
        ({"device": "cuda", "world_size": 4, "split_gpu": 4}, 4, ["id-0"]),
    ],
)
def test_the_gpus_of_a_trial_are_those_its_ranks_use(
    settings: dict[str, Any], gpus: int, expected: list[str]
) -> None:
    assert gpus_of(Trial(settings={"split_gpu": None, **settings}), _machine(gpus)) == expected


def _seen_on_gpus(host: Host, gpus: FakeNvml, pids: tuple[int, ...] | None, **options: Any) -> Any:
    """How many processes of others a window has, where process 41 is ours."""
    gpus.pids = pids
    gpus.states = {"a": _temperatures(9)}
    (host.proc / "41/task/41").mkdir(parents=True, exist_ok=True)
    (host.proc / "41/task/41/children").write_text("42")
    telemetry = Telemetry(["a"], proc=host.proc, meter=LoadMeter(41, host.proc), **options)
    sample_at(telemetry, host, 0.0, 1.0, 2.0, 3.0)
    return between(telemetry, 0.5, 3.5).get("load", {}).get("gpu_processes")


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ((41,), 0),
        ((42,), 0),
        ((42, 90, 91), 2),
        ((7, 8), None),  # ours is not among them: in a container the driver shows the ids of its host
        ((), None),
        (None, None),
    ],
)
def test_processes_of_others_on_a_gpu_are_those_that_are_not_ours(
    host: Host, gpus: FakeNvml, pids: tuple[int, ...] | None, others: int | None
) -> None:
    assert _seen_on_gpus(host, gpus, pids) == others


def test_where_a_daemon_s_processes_stand_for_ours_others_are_unknown(host: Host, gpus: FakeNvml) -> None:
    assert _seen_on_gpus(host, gpus, (41, 90), shows_processes=False) is None


def test_a_clock_that_falls_inside_the_window_and_heat_are_load(host: Host, gpus: FakeNvml) -> None:
    clocks = (1e9, 2e9, 2e9, 1.4e9, 2e9)  # the first is before the window
    gpus.states = {"a": [{"sm_clock_hz": clock, "throttle_mask": float(0x20)} for clock in clocks]}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 0.0, 1.0, 2.0, 3.0, 4.0)
    load = between(sampler, 0.5, 4.5)["load"]
    assert load["gpu_clock_share"] == pytest.approx(0.7)
    assert load["gpu_slowed"] == 1.0


def test_a_power_cap_is_not_heat_and_two_readings_do_not_tell_a_falling_clock(
    host: Host, gpus: FakeNvml
) -> None:
    gpus.states = {"a": [{"sm_clock_hz": clock, "throttle_mask": 4.0} for clock in (2e9, 1e9)]}
    sampler = sampler_of(host, ["a"])
    sample_at(sampler, host, 0.0, 1.0)
    assert between(sampler, 0.0, 1.5)["load"] == {"gpu_slowed": 0.0}


def test_a_window_too_short_for_two_readings_takes_those_around_it(host: Host) -> None:
    (host.proc / "loadavg").write_text("1.5 1 1 1/2 3")
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0, 1.0)
    host.now_s = _BEGIN_S + 1.6
    records = _records(dict(zip(WINDOW, (_BEGIN_S + 1.1, _BEGIN_S + 1.4), strict=True)))
    assert sampler.of_window(records)["load"] == {"load_average": 1.5}


def test_a_launch_without_marks_of_its_window_has_the_load_of_all_of_it(host: Host) -> None:
    (host.proc / "loadavg").write_text("2.5 1 1 1/2 3")
    sampler = sampler_of(host)
    sample_at(sampler, host, 0.0, 1.0, 2.0)
    assert sampler.of_window(_records({}))["load"] == {"load_average": 2.5}
