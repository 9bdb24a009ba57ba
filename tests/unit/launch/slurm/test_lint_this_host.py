"""Ranks of several nodes cannot meet at "this host"; those of one node can."""

import pytest

from scalescope.launch.slurm.lint import lint

_TOP = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
export OMP_NUM_THREADS=8
port=$((20000 + SLURM_JOB_ID % 12000))
"""
_FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_BAD = [
    ("export MASTER_ADDR=@\nsrun python train.py", 7),
    ("export MASTER_ADDR=@ MASTER_PORT=$port\nsrun ./train.sh", 7),
    ("MASTER_ADDR=@ srun python train.py", 7),
    (
        'export MASTER_ADDR="@"\n'
        "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$port train.py",
        7,
    ),
    ("export MASTER_ADDR=${MASTER_ADDR:-@}\nsrun python train.py", 7),
    ("srun torchrun --nnodes=2 --rdzv_backend=c10d \\\n  --rdzv_endpoint=@:$port train.py", 8),
    ("srun torchrun --nnodes=$SLURM_NNODES --rdzv-backend c10d --rdzv-endpoint @:$port train.py", 7),
    ("srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=@ train.py'", 7),
    ("srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master-addr @ train.py'", 7),
    ("srun accelerate launch --num_machines 2 --main_process_ip @ train.py", 7),
    ("head=@\nsrun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$head:$port train.py", 7),
    ("head=@\nat=$head:$port\nsrun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$at train.py", 7),
    (
        "args=(--nnodes=2 --rdzv_backend=c10d\n  --rdzv_endpoint=@:$port)\nsrun torchrun ${args[*]} train.py",
        8,
    ),
]


@pytest.mark.parametrize(
    ("script", "line", "host"),
    [
        *((script, line, "localhost") for script, line in _BAD),
        *((script, line, host) for script, line in (_BAD[0], _BAD[5]) for host in ("127.0.0.1", "::1")),
    ],
)
def test_this_host_is_found_and_fixed(script: str, line: int, host: str) -> None:
    written = f"[{host}]" if host == "::1" and "@:" in script else host
    mistakes = lint(_TOP + script.replace("@", written) + "\n")
    assert [mistake.line for mistake in mistakes] == [line], mistakes
    assert "rendezvous of 2 nodes is this host" in mistakes[0].what
    assert mistakes[0].fix == f"use the first host: {_FIRST}"
    first = f"first={_FIRST}\n" + script.replace("@", "$first") + "\n"
    assert lint(_TOP + first) == []


_NAMES = ["$HOSTNAME", "${HOSTNAME}", "$(hostname)", "`hostname -f`", "$SLURMD_NODENAME"]
_AT = "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=@:$port train.py"


@pytest.mark.parametrize("name", _NAMES)
def test_the_name_of_the_node_is_found_where_each_node_expands_it(name: str) -> None:
    script = f"{_TOP}export port\nsrun bash -c '\n{_AT}'\n".replace("@", name)
    (mistake,) = lint(script)
    assert (mistake.line, "the name of each node" in mistake.what) == (9, True)
    assert lint(script.replace(name, mistake.fix.removeprefix("use the first host: "))) == []
    escaped = name.replace("$", "\\$").replace("`", "\\`")
    assert len(lint(_TOP + f'srun bash -c "{_AT}"\n'.replace("@", escaped))) == 1
    python = "srun bash -c 'export MASTER_ADDR=@; python train.py'\n".replace("@", name)
    assert len(lint(_TOP + python)) == 1


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize(
    "command", [f"srun {_AT}", f'srun bash -c "{_AT}"', "export MASTER_ADDR=@\nsrun python a.py"]
)
def test_the_name_of_the_first_node_is_left_alone(command: str, name: str) -> None:
    assert lint(_TOP + command.replace("@", name) + "\n") == []


@pytest.mark.parametrize(("script", "_line"), _BAD)
def test_on_one_node_this_host_is_right(script: str, _line: int) -> None:
    top = _TOP.replace("--nodes=2", "--nodes=1")
    script = script.replace("--nnodes=2", "--nnodes=1").replace("--num_machines 2", "--num_machines 1")
    assert lint(top + script.replace("@", "localhost").replace("=$SLURM_NODEID", "=0") + "\n") == []


@pytest.mark.parametrize(
    "script",
    [
        "export MASTER_ADDR=localhost\nsrun torchrun --standalone train.py",
        "srun torchrun --standalone --rdzv_endpoint=localhost:0 train.py",
        "srun torchrun --nnodes=1 --rdzv_endpoint=localhost:0 train.py",
        "torchrun --rdzv_endpoint=localhost:0 train.py",
        "srun -N 1 -n 1 torchrun --rdzv_endpoint=localhost:0 train.py",
        "srun -N1 --ntasks=1 python train.py --master_addr=localhost",
        "export MASTER_ADDR=localhost\nsrun hostname",
        "export MASTER_ADDR=localhost\nsrun python -c 'import torch'\nsrun python -m pip list",
        "REDIS_HOST=localhost\nsrun python train.py --redis=$REDIS_HOST --url=localhost:80",
        "export MASTER_ADDR=localhost.example.org\nsrun python train.py",
        "# MASTER_ADDR=localhost\nsrun python train.py",
        'echo "MASTER_ADDR=localhost"\nsrun python train.py',
        f"if ((SLURM_NNODES > 1)); then\n  head={_FIRST}\nelse\n  head=localhost\nfi\n"
        "srun torchrun --nnodes=$SLURM_NNODES --rdzv_backend=c10d --rdzv_endpoint=$head:$port train.py",
        f"export MASTER_ADDR=127.0.0.1\nif ((SLURM_NNODES > 1)); then\n  export MASTER_ADDR={_FIRST}\nfi\n"
        "srun python train.py",
        f"export MASTER_ADDR=localhost\nhead={_FIRST}\n"
        "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$head:$port a.py",
    ],
)
def test_what_does_not_meet_across_nodes_is_left_alone(script: str) -> None:
    assert lint(f"{_TOP}{script}\n") == []
