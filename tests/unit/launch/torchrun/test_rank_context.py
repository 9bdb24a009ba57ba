"""Whether the environment makes us a rank, or only looks like it."""

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.launch.torchrun.rank_context import RankContext, port_of, rank_context, stray_variables

_TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_a_complete_set_makes_a_rank() -> None:
    context = rank_context({**_TORCHRUN, "MASTER_ADDR": "n1", "HOME": "/"})
    assert context == RankContext(1, 4)
    assert stray_variables(_TORCHRUN) == []


@pytest.mark.parametrize("missing", _TORCHRUN)
def test_an_incomplete_set_is_left_over(missing: str) -> None:
    kept = {name: value for name, value in _TORCHRUN.items() if name != missing}
    assert rank_context(kept) is None
    assert stray_variables(kept) == list(kept)


def test_an_empty_value_does_not_count() -> None:
    assert rank_context({"HOME": "/"}) is None
    assert stray_variables({"HOME": "/"}) == []
    assert rank_context({**_TORCHRUN, "MASTER_PORT": ""}) is None
    assert stray_variables({"RANK": ""}) == ["RANK"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "one"}, "RANK is 'one', which is not a number"),
        ({"RANK": "5"}, "RANK is 5, expected 0 to 3"),
        ({"RANK": "9" * 5000}, "RANK is '999"),
        ({"RANK": "\u0663"}, r"RANK is '\\u0663'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0, expected 1 to"),
        ({"WORLD_SIZE": "4.0"}, "WORLD_SIZE is '4.0', which is not a number"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK is 4, expected 0 to 3"),
        ({"LOCAL_WORLD_SIZE": "1"}, "LOCAL_WORLD_SIZE is 1, expected 2 to 4"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0, expected 1 to 65535"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536, expected 1 to 65535"),
        ({"MASTER_ADDR": "a b\n\x1b[2J"}, r"MASTER_ADDR is 'a b\\n\\x1b\[2J', which is not a host name"),
    ],
)
def test_wrong_variables_are_refused_by_name(change: dict[str, str], message: str) -> None:
    with pytest.raises(CannotRun, match=message) as refusal:
        rank_context({**_TORCHRUN, **change})
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("127.1.2.3", "127.1.2.3"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("n1", None),
        ("127.0.0.1.example", None),
    ],
)
def test_ranks_that_meet_at_the_loopback_stay_on_it(host: str, address: str | None) -> None:
    context = rank_context({**_TORCHRUN, "MASTER_ADDR": host})
    assert context is not None
    assert context.variables.get("SCALESCOPE_STORE_ADDRESS") == address
    assert context.variables.get("GLOO_SOCKET_IFNAME") == (None if address is None else "lo")


def test_all_ranks_on_one_host_stay_on_the_loopback_and_a_choice_is_kept() -> None:
    alone = {**_TORCHRUN, "MASTER_ADDR": "n1", "LOCAL_WORLD_SIZE": "4", "NCCL_SOCKET_IFNAME": "ib0"}
    context = rank_context(alone)
    assert context is not None
    assert context.variables == {"GLOO_SOCKET_IFNAME": "lo"}


_STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n[3-4]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
}


def test_a_step_of_srun_makes_a_rank() -> None:
    context = rank_context(_STEP)
    assert context is not None
    assert (context.rank, context.world_size) == (1, 3)
    port = port_of("77", 2)
    assert context.rendezvous == f"n3:{port}"
    assert context.variables == {
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "n3",
        "MASTER_PORT": str(port),
    }
    assert stray_variables(_STEP) == []


def test_ranks_of_one_host_meet_in_a_directory_and_stay_on_the_loopback() -> None:
    alone = {**_STEP, "SLURM_STEP_NODELIST": "n3", "SLURM_STEP_TASKS_PER_NODE": "3"}
    context = rank_context(alone)
    assert context is not None
    assert (context.rendezvous, context.directory) == (None, "77.2.0")
    assert "MASTER_PORT" not in context.variables
    assert context.variables["GLOO_SOCKET_IFNAME"] == context.variables["NCCL_SOCKET_IFNAME"] == "lo"
    chosen = rank_context({**alone, "NCCL_SOCKET_IFNAME": "ib0", "SLURM_RESTART_COUNT": "2"})
    assert chosen is not None and "NCCL_SOCKET_IFNAME" not in chosen.variables
    assert chosen.directory == "77.2.2"  # a job that starts anew counts its steps anew


def test_ranks_of_other_nodes_find_the_same_place() -> None:
    last = rank_context({**_STEP, "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"})
    first = rank_context(_STEP)
    assert first is not None and last is not None
    assert last.rendezvous == first.rendezvous
    assert last.variables["LOCAL_WORLD_SIZE"] == "1"


def test_steps_and_jobs_have_ports_of_their_own() -> None:
    ports = {port_of(str(job), step) for job in range(10) for step in range(10)}
    assert len(ports) > 95
    assert all(20_000 <= port < 32_000 for port in ports)


def test_an_address_that_was_given_is_kept() -> None:
    context = rank_context({**_STEP, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242"})
    assert context is not None
    assert context.rendezvous == "10.0.0.1:4242"
    assert stray_variables({**_STEP, "MASTER_ADDR": "10.0.0.1"}) == []


def test_torchrun_inside_a_step_decides() -> None:
    context = rank_context({**_STEP, **_TORCHRUN})
    assert context is not None
    assert (context.rank, context.world_size, context.directory) == (1, 4, None)


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_ID": ""},  # the batch script
        {"SLURM_STEP_ID": "4294967290"},  # the shell of salloc
        {"SLURM_PTY_PORT": "41000"},  # srun --pty bash
        {"SLURM_NTASKS": "1"},  # srun -n1: a place for ranks of our own
    ],
)
def test_a_shell_in_a_job_is_no_rank(change: dict[str, str]) -> None:
    assert rank_context({**_STEP, **change}, on_terminal=True) is None


@pytest.mark.parametrize("more", [{"SLURM_PTY_PORT": "41000"}, {"RANK": "0"}])
def test_a_step_from_such_a_shell_or_with_a_stray_variable_has_ranks(more: dict[str, str]) -> None:
    context = rank_context({**_STEP, **more}, on_terminal=False)
    assert context is not None and context.world_size == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_PROCID": "one"}, "SLURM_PROCID is 'one', which is not a number"),
        ({"SLURM_PROCID": "3"}, "SLURM_PROCID is 3, expected 0 to 2"),
        ({"SLURM_JOB_ID": "7/../7"}, "SLURM_JOB_ID is '7/../7', which is not the number of a job"),
        ({"SLURM_JOB_ID": "7/7", "SLURM_STEP_NODELIST": "n3"}, "SLURM_JOB_ID is '7/7'"),
        ({"SLURM_RESTART_COUNT": "../1", "SLURM_STEP_NODELIST": "n3"}, "SLURM_RESTART_COUNT is '../1'"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x', which is not a number"),
        ({"SLURM_STEP_NODELIST": ""}, "start them with srun"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "not a list of hosts"),
    ],
)
def test_a_broken_step_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises((BadInput, CannotRun), match=message):
        rank_context({**_STEP, **change})
