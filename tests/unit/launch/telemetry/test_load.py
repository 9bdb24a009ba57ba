"""Other load from a made-up /proc: what is ours, what is others', and what is not shown."""

from pathlib import Path

import pytest

from scalescope.launch.telemetry.load import (
    NOBODY,
    HostTicks,
    LoadMeter,
    LoadReading,
    host_ticks,
    load_at_start,
    load_between,
    process_ticks,
)
from scalescope.results.other_load import OtherLoad

ROOT, RANK, LOADER, STRANGER = 40, 41, 42, 90


class FakeProc:
    """A /proc of two cores with our tree of processes: the root, its rank, the rank's loader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.host(busy=0, idle=0)
        self.process(ROOT, ticks=0, children=[RANK])
        self.process(RANK, ticks=0, children=[LOADER])
        self.process(LOADER, ticks=0)
        self.write("loadavg", "1.25 0.5 0.1 1/99 1234\n")

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def host(self, *, busy: int, idle: int, steal: int = 0, elsewhere: int = 0) -> None:
        """Ticks of each of cores 0 and 1; core 2 is not ours to use."""
        core = f"{busy} 0 0 {idle} 0 0 0 {steal} 0 0"
        other = f"{elsewhere} 0 0 0 0 0 0 0 0 0"
        self.write("stat", f"cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 {core}\ncpu1 {core}\ncpu2 {other}\nintr 1\n")

    def process(self, pid: int, *, ticks: int, ended: int = 0, children: list[int] | None = None) -> None:
        fields = ["S", *["7"] * 10, f"{ticks}", "0", f"{ended}", "0", *["9"] * 35]
        self.write(f"{pid}/stat", f"{pid} (python) {' '.join(fields)}\n")
        self.write(f"{pid}/task/{pid}/children", " ".join(map(str, children or [])))

    def threads(self, pid: int, *times_ns: tuple[int, int]) -> None:
        for number, (ran, waited) in enumerate(times_ns):
            self.write(f"{pid}/task/{pid + 1000 * number}/schedstat", f"{ran} {waited} 7\n")

    def pressure(self, microseconds: int) -> None:
        self.write(
            "pressure/cpu", f"some avg10=1.00 avg60=0.50 avg300=0.10 total={microseconds}\nfull total=5\n"
        )

    def read(self, at_s: float, *ranks: int, root: int = ROOT) -> LoadReading:
        return LoadMeter(root, self.path, frozenset((0, 1))).read(at_s, ranks)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_work_is_busy_but_waiting_for_a_disk_and_other_machines_are_not_and_guests_count_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 4 1000 2000 8 16 32 1 0\n")
    assert host_ticks(tmp_path / "stat") == HostTicks(cores=1, busy=31, steal=32, total=3_063)


@pytest.mark.parametrize("name", ["pt main thread", "a) R 1 2 (b", ""])
def test_a_process_may_have_any_name(tmp_path: Path, name: str) -> None:
    fields = ["S", *["7"] * 10, "30", "12", "5000", "5000", *["9"] * 35]
    (tmp_path / "stat").write_text(f"41 ({name}) {' '.join(fields)}\n")
    assert process_ticks(tmp_path / "stat") == 42


def test_what_is_gone_or_torn_has_no_ticks(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    assert (host_ticks(path), process_ticks(path)) == (None, None)
    for text in ("", "cpu one two\n41 (python) S 1"):
        path.write_text(text)
        assert (host_ticks(path), process_ticks(path)) == (None, None)


def test_others_used_what_is_busy_and_not_ours(proc: FakeProc) -> None:
    first = proc.read(0.0)
    proc.host(busy=150, idle=50, elsewhere=500)  # of each of two cores, in two seconds
    proc.process(ROOT, ticks=10, ended=20, children=[RANK])
    proc.process(RANK, ticks=100, children=[LOADER])
    proc.process(LOADER, ticks=60)
    load = load_between(first, proc.read(2.0))
    assert load.cores == 2
    assert load.other_cores == pytest.approx((300 - 190) / 200)
    assert (load.stolen_cores, load.load_average) == (0.0, 1.25)
    assert (load.pressure, load.rank_waits, load.gpu_processes) == (None, None, None)


def test_time_of_other_machines_is_stolen_and_not_used_by_processes(proc: FakeProc) -> None:
    first = proc.read(0.0)
    proc.host(busy=0, idle=60, steal=40)
    load = load_between(first, proc.read(1.0))
    assert load.stolen_cores == pytest.approx(0.8)
    assert load.other_cores == 0.0


def test_counters_that_are_read_a_tick_apart_give_no_negative_load(proc: FakeProc) -> None:
    first = proc.read(0.0)
    proc.host(busy=50, idle=50)
    proc.process(RANK, ticks=103)
    assert load_between(first, proc.read(1.0)).other_cores == 0.0


def test_the_wait_of_a_rank_is_the_share_of_the_time_its_threads_wanted_a_core(proc: FakeProc) -> None:
    proc.threads(RANK, (1000, 500), (0, 0))
    first = proc.read(0.0, RANK)
    proc.threads(RANK, (1600, 700), (100, 100))
    load = load_between(first, proc.read(1.0, RANK))
    assert load.rank_waits == (pytest.approx(300 / 1000),)


def test_a_rank_that_slept_did_not_wait_and_where_one_is_unknown_none_is_claimed(proc: FakeProc) -> None:
    proc.threads(RANK, (1000, 500))
    assert load_between(proc.read(0.0, RANK), proc.read(1.0, RANK)).rank_waits == (0.0,)
    assert load_between(proc.read(0.0, RANK, 77), proc.read(1.0, RANK, 77)).rank_waits is None


def test_pressure_is_the_share_of_the_time_in_which_any_process_waited(proc: FakeProc) -> None:
    proc.pressure(1_000_000)
    first = proc.read(0.0)
    proc.pressure(1_500_000)
    assert load_between(first, proc.read(2.0)).pressure == pytest.approx(0.25)


def test_a_system_that_shows_nothing_leaves_everything_unknown(tmp_path: Path) -> None:
    meter = LoadMeter(ROOT, tmp_path / "nothing", frozenset((0, 1)))
    assert load_between(meter.read(0.0, [RANK]), meter.read(1.0, [RANK])) == OtherLoad()


@pytest.mark.parametrize("root", [ROOT, NOBODY])
def test_where_ours_cannot_be_told_from_others_both_are_unknown(proc: FakeProc, root: int) -> None:
    if root == ROOT:  # on a system that does not show children
        for children in proc.path.glob("*/task/*/children"):
            children.unlink()
    first = proc.read(0.0, root=root)
    proc.host(busy=100, idle=0)
    load = load_between(first, proc.read(1.0, root=root))
    assert (load.cores, load.other_cores) == (2, None)


def test_no_time_between_readings_is_no_evidence(proc: FakeProc) -> None:
    assert load_between(proc.read(1.0), proc.read(1.0)) == OtherLoad()


def test_our_processes_are_the_root_and_all_below_it(proc: FakeProc) -> None:
    meter = LoadMeter(ROOT, proc.path)
    assert meter.own_pids() == {ROOT, RANK, LOADER}
    assert meter.own_children() == {RANK}


def test_a_process_that_ends_while_it_is_read_is_left_out(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def vanishing(folder: Path) -> object:
        if folder.parent.name == str(RANK):
            raise FileNotFoundError(folder)
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", vanishing)
    assert LoadMeter(ROOT, proc.path).own_pids() == {ROOT, RANK}
    assert proc.read(0.0, RANK).waits == (None,)


class FakeNvml:
    """A driver that shows these processes, and how busy the GPU was."""

    def __init__(self, *pids: int, utilization: float | None = 0.5) -> None:
        self._pids, self._utilization = pids, utilization

    def __call__(self, uuids: object) -> "FakeNvml":
        return self

    def processes(self, uuid: str) -> tuple[int, ...] | None:
        return self._pids

    def history(self, uuid: str) -> dict[str, list[tuple[float, float]]]:
        return {} if self._utilization is None else {"utilization": [(1.0, 0.1), (2.0, self._utilization)]}

    def close(self) -> None:
        pass


def test_before_ranks_run_every_process_on_a_gpu_is_another_s(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalescope.launch.telemetry.load.Nvml", FakeNvml(STRANGER, RANK))
    load = load_at_start(LoadMeter(ROOT, proc.path, frozenset((0, 1))), proc.read(0.0), ["a"])
    assert (load.gpu_processes, load.gpu_utilization) == (1, 0.5)
    without = load_at_start(LoadMeter(ROOT, proc.path, frozenset((0, 1))), proc.read(0.0), [])
    assert (without.gpu_processes, without.gpu_utilization) == (None, None)
