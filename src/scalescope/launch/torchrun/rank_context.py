"""Whether a launcher made this process a rank: torchrun by its variables, srun by those of a job step."""

import ipaddress
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalescope.errors import CannotRun
from scalescope.launch.probing import LOOPBACK
from scalescope.launch.slurm.host_list import counts_of, hosts_of
from scalescope.results.ranks import STORE_ADDRESS_VARIABLE

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_STEP = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
# Numbers from here on are not ranks' steps: the batch script, an interactive shell, what comes from outside.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_LAST_STEP = 0xFFFFFFFF
_MOST_RANKS = 1_000_000
_LAST_PORT = 65_535
_HOST = re.compile(r"[A-Za-z0-9_.:%\[\]-]{1,255}")
_JOB = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # it becomes the name of a directory
# Below the ports that systems hand out by themselves (32768 and up on Linux).
_FIRST_PORT = 20_000
_PORTS = 12_000


@dataclass(frozen=True, slots=True)
class RankContext:
    """This process as one of the ranks that torchrun or srun started."""

    rank: int
    world_size: int
    variables: Mapping[str, str] = field(default_factory=dict)  # what torchrun would have set for the worker
    rendezvous: str | None = None  # the rendezvous of ranks of several hosts, where we chose it
    directory: str | None = None  # the name of the one that ranks of one host share, which opens no port


def rank_context(environment: Mapping[str, str], *, on_terminal: bool | None = None) -> RankContext | None:
    """Our context under torchrun or srun; None where we are not a rank, or variables are missing."""
    if not all(environment.get(name) for name in _TORCHRUN):
        return _context_in_step(environment, _has_terminal() if on_terminal is None else on_terminal)
    ranks = _number(environment, "WORLD_SIZE", low=1, high=_MOST_RANKS)
    rank = _number(environment, "RANK", high=ranks - 1)
    local_rank = _number(environment, "LOCAL_RANK", high=ranks - 1)
    if environment.get("LOCAL_WORLD_SIZE"):
        _number(environment, "LOCAL_WORLD_SIZE", low=local_rank + 1, high=ranks)
    _check_meeting_point(environment)
    listening = loopback_address(environment["MASTER_ADDR"])
    if listening is not None:
        return RankContext(
            rank, ranks, {**_loopback_variables(environment), STORE_ADDRESS_VARIABLE: listening}
        )
    is_one_host = environment.get("LOCAL_WORLD_SIZE") == str(ranks)
    return RankContext(rank, ranks, _loopback_variables(environment) if is_one_host else {})


def loopback_address(host: str) -> str | None:
    """The address of a host name that only its own host reaches; None where others may reach it."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    return str(address) if address.is_loopback else None


def _loopback_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What keeps the traffic of ranks of one host on it; a choice of the user stays."""
    return {name: value for name, value in LOOPBACK.items() if name not in environment}


def _check_meeting_point(environment: Mapping[str, str]) -> None:
    """Refuse an address or a port that cannot be one, where they are given."""
    if environment.get("MASTER_PORT"):
        _number(environment, "MASTER_PORT", low=1, high=_LAST_PORT)
    address = environment.get("MASTER_ADDR")
    if address and not _HOST.fullmatch(address):
        raise CannotRun(f"MASTER_ADDR is {_shown(address)}, which is not a host name or an IP address")


def stray_variables(environment: Mapping[str, str]) -> list[str]:
    """Rank variables that are set without making us a rank: left over, and ignored."""
    if rank_context(environment) is not None:
        return []
    return [name for name in _TORCHRUN if name in environment]


def _has_terminal() -> bool:
    """Whether we run in a terminal, even where input comes from elsewhere (`nohup … &`)."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _context_in_step(environment: Mapping[str, str], on_terminal: bool) -> RankContext | None:
    """Our context in a step of srun; a shell that srun opened (--pty) is a user's, not a rank.

    Steps started from such a shell inherit its variable, but not its terminal. A step of one task is not a
    group of ranks: there we start ranks of our own, as on any machine.
    """
    if not all(environment.get(name) for name in _STEP):
        return None
    if "SLURM_PTY_PORT" in environment and on_terminal:
        return None
    step = _number(environment, "SLURM_STEP_ID", high=_LAST_STEP)
    tasks = _number(environment, "SLURM_NTASKS", low=1, high=_MOST_RANKS)
    if step >= _FIRST_SPECIAL_STEP or tasks == 1:
        return None
    rank = _number(environment, "SLURM_PROCID", high=tasks - 1)
    local_rank = _number(environment, "SLURM_LOCALID", high=tasks - 1)
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(_ranks_on_node(environment, tasks)),
    }
    hosts, job = _hosts(environment), _job(environment)
    if len(hosts) == 1:
        # Numbers of steps begin anew with each start of a job.
        given = environment.get("SLURM_RESTART_COUNT")
        start = _number(environment, "SLURM_RESTART_COUNT", high=_LAST_STEP) if given else 0
        chosen = _loopback_variables(environment)
        return RankContext(rank, tasks, {**variables, **chosen}, directory=f"{job}.{step}.{start}")
    _check_meeting_point(environment)
    address = environment.get("MASTER_ADDR") or hosts[0]
    port = environment.get("MASTER_PORT") or str(port_of(job, step))
    rendezvous = {"MASTER_ADDR": address, "MASTER_PORT": port}
    return RankContext(rank, tasks, {**variables, **rendezvous}, f"{address}:{port}")


def port_of(job: str, step: int) -> int:
    """A port that all ranks of a step work out alike, and other jobs and steps hardly ever."""
    return _FIRST_PORT + zlib.crc32(f"{job}.{step}".encode()) % _PORTS


def _hosts(environment: Mapping[str, str]) -> list[str]:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(name):
            return hosts_of(environment[name])
    raise CannotRun("SLURM_STEP_NODELIST is not set, so ranks cannot find each other; start them with srun")


def _job(environment: Mapping[str, str]) -> str:
    job = environment.get("SLURM_JOB_ID", "")
    if job and not _JOB.fullmatch(job):
        raise CannotRun(f"SLURM_JOB_ID is {_shown(job)}, which is not the number of a job; unset it")
    return job


def _ranks_on_node(environment: Mapping[str, str], tasks: int) -> int:
    """How many ranks this node has, including this one."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    given = environment.get("SLURM_NODEID")
    node = _number(environment, "SLURM_NODEID", high=_MOST_RANKS) if given else 0
    counts = counts_of(text) if text else [tasks]
    return counts[node] if node < len(counts) else 1


def _number(environment: Mapping[str, str], name: str, *, low: int = 0, high: int) -> int:
    text = environment[name]
    if not re.fullmatch("[0-9]{1,10}", text):
        raise CannotRun(f"{name} is {_shown(text)}, which is not a number; unset it")
    if not low <= int(text) <= high:
        limits = f"{low} to {high}" if low < high else f"{low}"
        raise CannotRun(f"{name} is {int(text)}, expected {limits}")
    return int(text)


def _shown(text: str) -> str:
    """A value as a message prints it: on one line, whatever it holds."""
    return ascii(text[:60])
