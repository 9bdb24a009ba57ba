"""torchrun on several nodes needs a rendezvous by which the same words make different nodes."""

import pytest

from scalescope.launch.slurm.lint import lint

_TOP = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
export OMP_NUM_THREADS=8
export head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export port=$((20000 + SLURM_JOB_ID % 12000))
"""
_FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_PORT = "$((20000 + SLURM_JOB_ID % 12000))"
_C10D = "--rdzv_backend=c10d --rdzv_endpoint=$head:$port"
_STATIC = "--master_addr=$head --master_port=$port"
_ALL_NODE_0 = "without --node_rank or a rendezvous backend"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"srun torchrun --nnodes=2 {_STATIC} train.py", _ALL_NODE_0),
        ("srun torchrun --nnodes 2 --master-addr $head --master-port $port train.py", _ALL_NODE_0),
        (f"srun torchrun --nnodes=$SLURM_NNODES {_STATIC} train.py", _ALL_NODE_0),
        (f'srun torchrun --nnodes="$SLURM_JOB_NUM_NODES" {_STATIC} train.py', _ALL_NODE_0),
        (f"srun torchrun --nnodes=1:4 {_STATIC} train.py", _ALL_NODE_0),
        (f"srun python -u -m torch.distributed.run --nnodes=2 {_STATIC} train.py", _ALL_NODE_0),
        (f"srun python -m torch.distributed.launch --nnodes=2 {_STATIC} -m pkg.train", _ALL_NODE_0),
        (f"srun torchrun --nnodes=2 --rdzv_backend static {_STATIC} train.py", _ALL_NODE_0),
        ("srun torchrun --nnodes=2 --rdzv_endpoint=$head:$port train.py", _ALL_NODE_0),
        ("srun torchrun --nnodes=2 train.py", _ALL_NODE_0),
        (f"srun torchrun --nnodes=2 {_STATIC} train.py --node_rank=1 --rdzv_backend=c10d", _ALL_NODE_0),
        (f"srun torchrun --nnodes=2 {_STATIC} $SCRIPT --lr 1", _ALL_NODE_0),
        (f"ARGS='--nnodes=2 {_STATIC}'; srun torchrun $ARGS train.py", _ALL_NODE_0),
        (f"mpirun -np 2 torchrun --nnodes=2 {_STATIC} train.py", _ALL_NODE_0),
        (f"srun torchrun --nnodes=2 --node_rank=0 {_STATIC} train.py", "with --node_rank=0"),
        (f"srun bash -c 'torchrun --nnodes=2 --node-rank 1 {_STATIC} train.py'", "with --node_rank=1"),
        ("srun torchrun --standalone --nnodes=2 train.py", "with --standalone, which is for one node"),
        ("srun torchrun --nnodes=2 --rdzv_backend=c10d train.py", "without --rdzv_endpoint"),
        (f"srun torchrun --nnodes=2 --rdzv_backend=c10d {_STATIC} train.py", "without --rdzv_endpoint"),
        ("srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID train.py'", "without --master_addr"),
    ],
)
def test_nodes_that_cannot_meet_are_found_and_fixed(command: str, words: str) -> None:
    (mistake,) = lint(f"{_TOP}{command}\n")
    assert (mistake.line, words in mistake.what) == (8, True), mistake
    assert not mistake.may_be_intended
    flags = mistake.fix.partition(" instead of ")[0]
    assert "--rdzv_backend=c10d" in flags
    endpoint = "" if "--rdzv_endpoint=" in flags else "--rdzv_endpoint=$head:$port"
    assert lint(f"{_TOP}srun torchrun --nnodes=2 {flags} {endpoint} train.py\n") == []


def test_the_fix_keeps_the_address_and_names_what_it_replaces() -> None:
    (mistake,) = lint(f"{_TOP}srun torchrun --nnodes=2 --node_rank=0 {_STATIC} train.py\n")
    assert mistake.fix == f"{_C10D} instead of --node_rank and --master_addr and --master_port"
    (mistake,) = lint(f"{_TOP}srun torchrun --nnodes=2 train.py\n")
    assert mistake.fix == f"--rdzv_backend=c10d --rdzv_endpoint={_FIRST}:{_PORT}"


@pytest.mark.parametrize(
    "command",
    [
        f"srun torchrun --nnodes=2 {_C10D} train.py",
        "srun torchrun --nnodes=1:4 --rdzv-backend c10d --rdzv-endpoint $head:$port train.py",
        f"srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID {_C10D} train.py",  # which c10d ignores
        f"srun torchrun --nnodes=2 --node_rank=0 {_C10D} train.py",
        "srun torchrun --nnodes=2 --rdzv_backend=etcd-v2 --rdzv_endpoint=$ETCD train.py",
        f"srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID {_STATIC} train.py'",
        f'srun bash -c "torchrun --nnodes=2 --node_rank=\\$SLURM_PROCID {_STATIC} train.py"',
        f"for i in 0 1; do srun -N1 -n1 -r $i torchrun --nnodes=2 --node_rank=$i {_STATIC} a.py & done; wait",
        f"srun -N1 -n1 torchrun --nnodes=2 --node_rank=0 {_STATIC} a.py & "
        f"srun -N1 -n1 -r1 torchrun --nnodes=2 --node_rank=1 {_STATIC} a.py & wait",
        f"ssh $second torchrun --nnodes=2 --node_rank=1 {_STATIC} a.py & "
        f"torchrun --nnodes=2 --node_rank=0 {_STATIC} a.py",
        "srun torchrun --standalone --nproc_per_node=4 train.py",
        "srun torchrun --nnodes=1 --standalone train.py",
        "srun torchrun train.py --nnodes=2",
        "srun torchrun $DIST_ARGS --nnodes=2 train.py",
        "srun torchrun --nnodes=2 $HOW train.py",
        "export PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=$head:$port; srun torchrun --nnodes=2 train.py",
        "srun accelerate launch --num_machines 2 --main_process_ip $head train.py",
    ],
)
def test_nodes_that_meet_are_left_alone(command: str) -> None:
    assert lint(f"{_TOP}{command}\n") == []


def test_one_node_needs_no_rendezvous() -> None:
    top = _TOP.replace("--nodes=2", "--nodes=1")
    assert lint(f"{top}torchrun --nnodes=$SLURM_NNODES {_STATIC} train.py\n") == []
    assert lint(f"{top}torchrun --nnodes=1:1 {_STATIC} train.py\n") == []


def test_a_rank_that_was_copied_before_srun_is_found() -> None:
    command = f"srun bash -c 'torchrun --nnodes=2 --node_rank=$RANK {_STATIC} train.py'\n"
    (mistake,) = lint(f"{_TOP}export RANK=$SLURM_NODEID\n{command}")
    assert (mistake.line, "it is 0 on every node" in mistake.what) == (9, True)
    assert "--node_rank=$SLURM_NODEID" in mistake.fix
    assert lint(f"{_TOP}{command.replace('torchrun', 'RANK=$SLURM_NODEID; torchrun')}") == []


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        (f"--nnodes=2 {_C10D}", ""),
        (f"--nnodes=2 {_STATIC}", f" {_C10D} instead of --master_addr and --master_port"),
        (
            f"--nnodes=2 --node_rank=$SLURM_NODEID {_STATIC}",
            f" {_C10D} instead of --node_rank and --master_addr and --master_port",
        ),
    ],
)
def test_the_fix_of_a_missing_srun_works_on_two_nodes(flags: str, needed: str) -> None:
    asking = "ip=$(srun -N1 -n1 hostname -I)\n"  # which starts no ranks
    (mistake,) = lint(f"{_TOP}{asking}torchrun {flags} train.py\n")
    assert (mistake.line, "runs only on the first node" in mistake.what) == (9, True)
    step = "srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 --cpus-per-task=$SLURM_CPUS_PER_TASK torchrun"
    assert mistake.fix == f"start it on all nodes: {step}{needed}"
    assert lint(f"{_TOP}{asking}{step} --nnodes=2 {_C10D} train.py\n") == []
