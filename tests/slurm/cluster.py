"""A real SLURM of two nodes on this host: its own key, ports and folder, and daemons that end with us.

Nothing outside its folder is written. Node names resolve to the loopback by a hosts file that only the nodes'
daemons see, in a mount namespace of theirs.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.speed import patience

NODES = ("scalenode1", "scalenode2")
_LIMIT_S = 30.0
_CONF = """\
ClusterName=onehost
FirstJobId={first_job}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
SwitchType=switch/none
ReturnToService=2
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def why_no_slurm() -> str | None:
    """What is missing for a SLURM on this host; None when nothing is."""
    tools = ("slurmctld", "slurmd", "munged", "sbatch", "unshare", "mount")
    missing = [tool for tool in tools if _find(tool) is None]
    if missing:
        return f"SLURM needs {', '.join(missing)}"
    return None if os.geteuid() == 0 else "a SLURM of one's own needs root"


@contextlib.contextmanager
def one_host_cluster() -> Iterator[dict[str, str]]:
    """Start both nodes; gives the variables that lead commands to them."""
    folder = Path(tempfile.mkdtemp(prefix="scalescope-slurm-"))  # short: a socket's path has 107 characters
    daemons: list[subprocess.Popen[bytes]] = []
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    try:
        _write_files(folder)
        for command in _commands(folder):
            with (folder / "daemons.log").open("ab") as log:
                bound = [sys.executable, "-m", "scalescope.parent_death", str(os.getpid()), *command]
                daemons.append(subprocess.Popen(bound, stdout=log, stderr=log, start_new_session=True))
            if "munged" in command[0]:
                _wait(lambda: (folder / "munge/socket").exists(), "munge", folder)
        _wait(
            lambda: _ask(variables, "sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 2, "node", folder
        )
        yield variables
    finally:
        try:
            _ask(variables, "scancel", "--user=root")
            _wait(lambda: not _ask(variables, "squeue", "-h"), "empty queue", folder)
        except (AssertionError, OSError, subprocess.SubprocessError):
            pass  # daemons end whether or not the queue is empty
        finally:
            _end(daemons[::-1])
            shutil.rmtree(folder, ignore_errors=True)


def _write_files(folder: Path) -> None:
    folder.chmod(0o755)
    for name in ("state", "munge", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    key = folder / "munge/key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    ports = _free_ports(3)
    host = socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 Gres=gpu:4 State=UNKNOWN"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    # Ranks find their port by the number of their job, and jobs of another such cluster may run on this host.
    first_job = 1 + secrets.randbelow(1_000_000)
    (folder / "slurm.conf").write_text(
        _CONF.format(folder=folder, host=host, ports=ports, nodes=nodes, first_job=first_job)
    )
    for number in range(4):  # to be asked for only: what is behind them is the null device
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-3]\n")
    names = Path("/etc/hosts").read_text()
    (folder / "hosts").write_text(f"{names}\n127.0.0.1 {' '.join(NODES)}\n")


def _commands(folder: Path) -> Iterator[list[str]]:
    munge, conf = folder / "munge", str(folder / "slurm.conf")
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    yield [
        _found("munged"),
        "--foreground",
        "--force",  # below /tmp, which everybody may write to
        *(f"--{flag}={munge / name}" for flag, name in files.items()),
    ]
    yield [_found("slurmctld"), "-D", "-f", conf]
    for node in NODES:
        inside = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
        start = ["unshare", "--mount", "sh", "-c", inside, "sh", str(folder / "hosts")]
        yield [*start, _found("slurmd"), "-D", "-N", node, "-f", conf]


def _find(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")


def _found(tool: str) -> str:
    path = _find(tool)
    assert path is not None, f"{tool} is missing"
    return path


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for listener in held:
        listener.bind(("127.0.0.1", 0))
    ports = [int(listener.getsockname()[1]) for listener in held]
    for listener in held:
        listener.close()
    return ports


def _ask(variables: dict[str, str], *command: str) -> str:
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(10))
    except (OSError, subprocess.SubprocessError):
        return "no answer"
    return done.stdout.strip()


def _wait(condition: Callable[[], bool], what: str, folder: Path) -> None:
    deadline = time.monotonic() + patience(_LIMIT_S)
    while not condition():
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
        assert time.monotonic() < deadline, f"no {what} within {_LIMIT_S:g} s:\n{logs}"
        time.sleep(0.1)


def _end(daemons: "list[subprocess.Popen[bytes]]") -> None:
    for daemon in daemons:
        daemon.send_signal(signal.SIGTERM)
    for daemon in daemons:
        try:
            daemon.wait(patience(10))
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
