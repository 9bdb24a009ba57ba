"""Whether a launcher made this process a rank: torchrun by its variables, srun by those of a job step."""

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalescope.errors import BadInput
from scalescope.launch.loopback import LOOPBACK
from scalescope.launch.slurm.host_list import counts_of, hosts_of

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_STEP = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
# Numbers from here on are not ranks' steps: the batch script, an interactive shell, what comes from outside.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
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
    try:
        return RankContext(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    except ValueError:
        raise BadInput("RANK and WORLD_SIZE are set but are not numbers; unset them") from None


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
    step, rank, local_rank, tasks = (_number(environment, name) for name in _STEP)
    if step >= _FIRST_SPECIAL_STEP or tasks == 1:
        return None
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(_ranks_on_node(environment, tasks)),
    }
    hosts, job = _hosts(environment), environment.get("SLURM_JOB_ID", "")
    if len(hosts) == 1:
        chosen = {name: value for name, value in LOOPBACK.items() if name not in environment}
        start = environment.get("SLURM_RESTART_COUNT", "0")  # numbers of steps begin anew with each
        return RankContext(rank, tasks, {**variables, **chosen}, directory=f"{job}.{step}.{start}")
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
    raise BadInput("SLURM_STEP_NODELIST is not set, so ranks cannot find each other; start them with srun")


def _ranks_on_node(environment: Mapping[str, str], tasks: int) -> int:
    """How many ranks this node has, including this one."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    node = _number(environment, "SLURM_NODEID") if environment.get("SLURM_NODEID") else 0
    counts = counts_of(text) if text else [tasks]
    return counts[node] if node < len(counts) else 1


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise BadInput(f"{name} is {environment[name]!r}, which is not a number; unset it")
    return int(environment[name])
