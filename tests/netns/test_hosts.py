"""Network namespaces as hosts: one run of ranks in each, all nodes recorded, the slow one named."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalescope.launch.local.emulation import ShapedNetwork
from tests.conftest import TINY
from tests.gloo.conftest import Start
from tests.gloo.real_runs import SCALESCOPE

pytestmark = [pytest.mark.netns, pytest.mark.own_torch]

_HOSTS = ("hosta", "hostb")
_THREE = (*_HOSTS, "hostc")
_NAMED = 'hostname "$1" && shift && exec "$@"'


@pytest.fixture
def network() -> Iterator[ShapedNetwork]:
    made = ShapedNetwork([1e9] * len(_HOSTS))
    yield made
    made.close()


def _host(network: ShapedNetwork, number: int) -> tuple[str, ...]:
    """What a command is put behind to run on one of the hosts."""
    entered = ("nsenter", f"--net={network.namespace_of(number)}", "unshare", "--uts")
    return (*entered, "sh", "-c", _NAMED, "sh", _THREE[number])


def _variables(number: int, hosts: int) -> dict[str, str]:
    """What torchrun would set for the only rank of a host."""
    return {
        "RANK": str(number),
        "WORLD_SIZE": str(hosts),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(number),
        "TORCHELASTIC_RUN_ID": "none",
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29411",
    }


def test_node_by_node_the_host_with_the_slow_link_is_named(start: Start) -> None:
    network = ShapedNetwork([1e9, 1e9, 1e8])
    try:
        third, second, first = (
            start(
                *("comm", "--device=cpu", "--pairs", "--iters=3"),
                command=(*_host(network, number), *SCALESCOPE),
                **_variables(number, hosts=3),
                **network.environment_of(number),
            )
            for number in (2, 1, 0)
        )
        finished = first.finish()
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert second.finish().returncode == third.finish().returncode == 0
    finally:
        network.close()
    (named,) = (line for line in finished.stdout.splitlines() if line.startswith("Slow: "))
    assert "hostc" in named
    pairs = finished.summary["results"]["pairs"]
    assert [pair["nodes"] for pair in pairs] == [["hosta", "hostb"], ["hosta", "hostc"], ["hostb", "hostc"]]


def test_the_recipe_makes_one_run_on_two_machines(
    start: Start, network: ShapedNetwork, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    interface = f"GLOO_SOCKET_IFNAME={network.environment_of(1)['GLOO_SOCKET_IFNAME']}"
    on_second = (*_host(network, 1), "env", interface, "sh", "-c")
    programs = {  # ssh enters the other namespace, where it would reach the other machine
        "ssh": f'test "$1 $2" = "-tt 10.77.0.2" && exec {shlex.join(on_second)} "$3"',
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }
    for name, line in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    recipe = str(Path(__file__).parents[2] / "examples/two_machines.sh")
    command = (*_host(network, 0), recipe, "10.77.0.1", "10.77.0.2", "1")
    path = f"{tools}:{os.environ['PATH']}"
    asked = ("scale", *TINY, "--no-waterfall")
    run = start(*asked, command=command, PATH=path, **network.environment_of(0))
    finished = run.finish()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    both = [result for result in finished.results if result["settings"]["world_size"] == 2]
    assert {tuple(rank["host"] for rank in result["ranks"]) for result in both} == {_HOSTS}
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert list(environment["nodes"]) == list(_HOSTS)
    assert "2 ranks on 2 nodes: hosta, hostb." in finished.stdout
    assert run.leftovers() == []
