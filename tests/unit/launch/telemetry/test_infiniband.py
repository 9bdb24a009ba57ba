"""Error counters of InfiniBand ports, from a made-up /sys."""

from pathlib import Path

import pytest

from scalescope.launch.telemetry.infiniband import growth, read_counters
from scalescope.launch.telemetry.load import LoadMeter
from scalescope.launch.telemetry.sampler import Telemetry
from scalescope.results.result import WINDOW, RankRecord


def count(
    sys: Path, name: str, value: int | str, *, device: str = "mlx5_0", folder: str = "counters"
) -> None:
    path = sys / f"class/infiniband/{device}/ports/1/{folder}/{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def test_errors_are_read_and_traffic_is_not(tmp_path: Path) -> None:
    count(tmp_path, "symbol_error", 3)
    count(tmp_path, "port_xmit_data", 10**12)
    count(tmp_path, "port_xmit_wait", 10**6)
    count(tmp_path, "out_of_sequence", 7, folder="hw_counters")
    count(tmp_path, "link_downed", "N/A (no PMA)")
    assert read_counters(tmp_path) == {"mlx5_0/1": {"symbol_error": 3, "out_of_sequence": 7}}


def test_only_growth_counts_and_a_port_without_errors_is_known() -> None:
    before = {"a/1": {"symbol_error": 3, "link_downed": 1}, "b/1": {"symbol_error": 0}}
    after = {
        "a/1": {"symbol_error": 15, "link_downed": 0},
        "b/1": {"symbol_error": 0},
        "c/1": {"link_downed": 9},
    }
    assert growth(before, after) == {"a/1": {"symbol_error": 12}, "b/1": {}}


@pytest.mark.parametrize("marked", [True, False])
def test_the_errors_of_a_launch_are_in_its_telemetry(tmp_path: Path, marked: bool) -> None:
    count(tmp_path, "symbol_error", 3)
    count(tmp_path, "symbol_error", 0, device="mlx5_1")
    telemetry = Telemetry([], meter=LoadMeter(0, tmp_path), proc=tmp_path, sys=tmp_path)
    count(tmp_path, "symbol_error", 15)
    counters: dict[str, float | int | str | None] = (
        dict(zip(WINDOW, (1.0, 2.0), strict=True)) if marked else {}
    )
    record = RankRecord(rank=0, host="h", device="cpu", placement="", counters=counters)
    assert telemetry.of_window([record])["infiniband"] == {"mlx5_0/1": {"symbol_error": 12}, "mlx5_1/1": {}}


def test_a_host_without_ports_does_not_claim_that_there_were_no_errors(tmp_path: Path) -> None:
    assert read_counters(tmp_path) == {}
    telemetry = Telemetry([], meter=LoadMeter(0, tmp_path), proc=tmp_path, sys=tmp_path)
    assert "infiniband" not in telemetry.of_window([])
