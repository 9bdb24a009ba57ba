"""The NCCL log: what NCCL chose is read from its INFO lines."""

from collections.abc import Iterable

import pytest

from scalescope.analysis.comm.nccl_log import NcclChoices, read_logs

NVLINK = """\
node1:4711:4711 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
node1:4711:4711 [0] NCCL INFO cudaDriverVersion 12080
NCCL version 2.26.2+cuda12.8
node1:4711:4790 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node1:4711:4790 [0] NCCL INFO Using network IB
node1:4711:4790 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
node1:4711:4790 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7
node1:4711:4790 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:4711:4790 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:4711:4790 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node1:4711:4790 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels
node1:4711:4711 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
node1:4711:4711 [0] NCCL INFO AllReduce: 2048 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
node1:4711:4711 [0] NCCL INFO AllReduce: 67108864 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
"""

SOCKETS = """\
node1:11:11 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
node1:11:11 [0] NCCL INFO Using network Socket
node1:11:11 [0] NCCL INFO NVLS multicast support is not available on dev 0
node1:11:11 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
node1:11:11 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/1
node1:11:11 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels
"""


def read_choices(lines: Iterable[str]) -> NcclChoices:
    return read_logs([("", lines)])


def test_an_nvswitch_machine() -> None:
    choices = read_choices(NVLINK.splitlines())
    assert choices.transports == ("P2P/CUMEM",)
    assert choices.network == "IB"
    assert choices.channels == 24
    assert choices.algorithms == ("AllReduce TREE/LL", "AllReduce NVLS/SIMPLE")
    assert choices.nvls is True
    assert not choices.uses_sockets


def test_a_fall_back_to_sockets_has_evidence() -> None:
    choices = read_choices(SOCKETS.splitlines())
    assert choices.transports == ("NET/Socket",)
    assert choices.network == "Socket"
    assert choices.channels == 2
    assert choices.algorithms == ()
    assert choices.nvls is False
    assert choices.uses_sockets


@pytest.mark.parametrize(
    ("words", "transport"),
    [
        ("via SHM/direct/direct", "SHM/direct/direct"),
        ("[send] via NET/IB/3", "NET/IB"),
        ("[send] via NET/IB/7(6)/GDRDMA", "NET/IB/GDRDMA"),
        ("[send] via NET/AWS Libfabric/3/GDRDMA", "NET/AWS Libfabric/GDRDMA"),
    ],
)
def test_transports_are_named_without_the_number_of_the_card(words: str, transport: str) -> None:
    choices = read_choices([f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] {words}"])
    assert choices.transports == (transport,)


def test_the_lines_of_all_ranks_count_once_each_in_order() -> None:
    lines = [
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
        "h:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA",
        "h:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct",
        "h:2:2 [1] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA",
    ]
    assert read_choices(lines).transports == ("SHM/direct/direct", "NET/IB/GDRDMA")
    assert read_choices(["h:1:1 [0] NCCL INFO Using network AWS Libfabric"]).network == "AWS Libfabric"
    choices = read_choices(
        ["connected via ETH/0", "Using network Socket", "7 coll channels", "", "NCCL WARN via NET/Socket/0"]
    )
    assert (choices.transports, choices.network, choices.channels) == ((), None, None)
    assert (choices.algorithms, choices.nvls, choices.uses_sockets) == ((), None, False)


# Two ranks of one node of two, with two cards; the second rank sends over the first one's (PXN).
INFINIBAND = (
    """\
n1:41:77 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>
n1:41:77 [0] NCCL INFO Using network IB
n1:41:77 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:41:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:41:77 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels
""",
    """\
n1:42:78 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>
n1:42:78 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(0)/GDRDMA
n1:42:78 [1] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA/Shared
""",
)


def test_connections_and_cards_are_counted_for_each_host() -> None:
    choices = read_logs([("n1", log.splitlines()) for log in INFINIBAND])
    assert choices.connections == {"n1": {"NET/IB/GDRDMA": 2, "NET/IB/GDRDMA/Shared": 1}}
    assert choices.used_nics == {"n1": ("mlx5_0", "mlx5_3")}
    assert choices.network_transports == ("NET/IB/GDRDMA", "NET/IB/GDRDMA/Shared")
    assert choices.uses_gpudirect is True
    assert choices.channels == 16


def test_gpudirect_needs_every_connection_and_sockets_say_nothing() -> None:
    logs = [("n1", INFINIBAND[0].splitlines()), ("n2", INFINIBAND[1].replace("/GDRDMA", "").splitlines())]
    assert read_logs(logs).uses_gpudirect is False
    assert read_choices(SOCKETS.splitlines()).uses_gpudirect is None
    assert read_choices(()).used_nics == {}
