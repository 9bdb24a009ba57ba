"""Whole job scripts, as sites and tutorials have them: good ones are left alone."""

import pytest

from scalescope.launch.slurm.lint import lint

_GOOD = {
    "accelerate in a variable": r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=96
GPUS_PER_NODE=8
head_node_ip=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
LAUNCHER="accelerate launch \
    --num_cpu_threads_per_process 8 \
    --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \
    --num_machines $SLURM_NNODES \
    --machine_rank \$SLURM_PROCID \
    --main_process_ip $head_node_ip \
    --main_process_port ${MASTER_PORT:-29500} \
    "
srun -c 96 bash -c "$LAUNCHER train.py"
""",
    "an array of jobs": r"""#!/bin/bash
#SBATCH --array=0-7%4
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
export OMP_NUM_THREADS=8
LRS=(1e-3 3e-4
  1e-4 3e-5)   # learning rates
lr=${LRS[$SLURM_ARRAY_TASK_ID]}
torchrun --standalone --nproc_per_node=1 train.py --lr "$lr" --master_port=2950${SLURM_ARRAY_TASK_ID}
""",
    "torchruns in the background": r"""#!/bin/bash
#SBATCH --gpus=2
#SBATCH -c 8
export OMP_NUM_THREADS=4
CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node=1 a.py &
CUDA_VISIBLE_DEVICES=1 torchrun --standalone --nproc_per_node=1 b.py &
wait
for i in 0 1; do
  torchrun --nproc_per_node=1 --master_port=$((20000 + SLURM_JOB_ID % 12000 + i)) d.py &
done
wait
for i in 0 1; do
  torchrun --nproc_per_node=2 d.py & pid=$!
  wait $pid
done
""",
    "a container": r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-task=4
#SBATCH --cpus-per-gpu=8
RDZV_HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export SINGULARITYENV_OMP_NUM_THREADS=8
srun --container-image=nvcr.io#nvidia/pytorch:24.01-py3 --container-mounts="$PWD:/w" hostname
srun singularity exec --nv torch.sif bash -c "cd /w && \
  torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d \
  --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$RDZV_HOST:$((20000 + SLURM_JOB_ID % 12000)) train.py"
""",
    "an inner script in a here-document": r"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=16
#SBATCH --gres=gpu:4
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export port=$((20000 + SLURM_JOB_ID % 12000)) head
cat > inner.sh <<'EOF'
#!/bin/bash
#SBATCH --ntasks-per-node=9
export OMP_NUM_THREADS=4
# don't
torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$head --master_port=$port train.py
EOF
chmod +x inner.sh
srun -c 16 ./inner.sh
x=$((1 << 3))
""",
    "a task for each GPU": r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
srun --cpus-per-task=$SLURM_CPUS_PER_TASK --unbuffered python -u train.py --launcher torchrun
""",
    "static rendezvous": r"""#!/bin/bash
#SBATCH -N 2
#SBATCH --tasks-per-node=1
#SBATCH -c 32
#SBATCH --gpus-per-node=4
export OMP_NUM_THREADS=8
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
echo "MASTER_ADDR=$SLURM_NODELIST MASTER_PORT=29500; starting torchrun"
srun -c 32 bash -c 'torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 \
     --node_rank=$SLURM_NODEID \
     --master_addr=$MASTER_ADDR \
     --master_port=$MASTER_PORT train.py'
""",
}

_BAD = {
    "accelerate in a variable": (
        r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=96
GPUS_PER_NODE=8
export LAUNCHER="accelerate launch \
    --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \
    --num_machines $SLURM_NNODES \
    --machine_rank $SLURM_PROCID \
    --main_process_ip $SLURM_NODELIST \
    --main_process_port 29500 \
    "
export CMD="$LAUNCHER train.py --a b"
srun --jobid $SLURM_JOBID bash -c "$CMD" 2>&1 | tee log.txt
""",
        [(10, "0 on every node"), (11, "list of nodes"), (12, "port 29500"), (15, "OMP_NUM_THREADS")],
    ),
    "an array of jobs": (
        r"""#!/bin/bash
#SBATCH --array=0-7
#SBATCH --gres=gpu:1
#SBATCH --ntasks=1
export MASTER_PORT=${MASTER_PORT:-29500}
srun --mpi=pmix_v3 python3 train.py
""",
        [(4, "no --cpus-per-task"), (5, "port 29500"), (6, "PMIx"), (6, "OMP_NUM_THREADS")],
    ),
    "a shell's lines in quotes": (
        r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=8
srun --cpus-per-task 8 \
  bash -lc "
   source env.sh
   export OMP_NUM_THREADS=4
   torchrun --nnodes 2 --nproc_per_node 4 \
     --rdzv_backend c10d --rdzv_endpoint $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1):29500 \
     train.py
  "
#SBATCH --time=3
""",
        [(3, "2 tasks per node"), (10, "port 29500"), (13, "after the first command (line 5)")],
    ),
    "torchruns in the background": (
        r"""#!/bin/bash
#SBATCH --gpus=2
#SBATCH -c 8
export OMP_NUM_THREADS=4
CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node=1 a.py > a.log 2>&1 &
CUDA_VISIBLE_DEVICES=1 torchrun --nproc_per_node=1 b.py &> b.log &
wait
torchrun --nproc_per_node=2 c.py
for i in 0 1; do
  CUDA_VISIBLE_DEVICES=$i torchrun --nproc_per_node=1 d.py &
done
wait
""",
        [(6, "another torchrun"), (10, "another torchrun")],
    ),
    "a command in an array": (
        r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
export OMP_NUM_THREADS=4
head=$(scontrol show hostnames ${SLURM_JOB_NODELIST} | sort -h | head -n1)
args=(
    --nnodes=2   # two
    --rdzv-backend=c10d --rdzv-endpoint="$head:29292"
    --nproc-per-node=8
)
CMD=(python -m torch.distributed.run "${args[@]}" train.py)
which torchrun
srun -c 8 "${CMD[@]}"
""",
        [(3, "2 tasks per node"), (9, "port 29292")],
    ),
    "a container": (
        r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
RDZV_HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ENDPOINT="${RDZV_HOST}:29292"
srun -c 8 apptainer exec --nv --bind /data:/data,$PWD --env OMP_NUM_THREADS=8 \
    torch.sif \
    torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$ENDPOINT train.py
""",
        [(3, "4 tasks per node"), (7, "port 29292")],
    ),
    "deepspeed": (
        r"""#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
module load cuda
export OMP_NUM_THREADS=4
srun deepspeed --num_gpus 8 --master_port 29501 train.py --deepspeed ds.json
""",
        [(3, "8 tasks per node with deepspeed"), (8, "port 29501")],
    ),
    "the head node asked by srun": (
        r"""#!/bin/bash
#SBATCH --job-name=multinode-example
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)

echo Node IP: $head_node_ip
export LOGLEVEL=INFO
export OMP_NUM_THREADS=4

srun torchrun \
--nnodes 4 \
--nproc_per_node 4 \
--rdzv_id $RANDOM \
--rdzv_backend c10d \
--rdzv_endpoint $head_node_ip:29500 \
multinode_torchrun.py 50 10
""",
        [(4, "4 tasks per node"), (22, "port 29500")],
    ),
}


@pytest.mark.parametrize("name", _GOOD)
def test_good_scripts_are_clean(name: str) -> None:
    assert lint(_GOOD[name]) == []


@pytest.mark.parametrize("name", _BAD)
def test_bad_scripts_have_all_their_mistakes(name: str) -> None:
    script, expected = _BAD[name]
    mistakes = lint(script)
    assert [mistake.line for mistake in mistakes] == [line for line, _ in expected], mistakes
    assert [
        words for mistake, (_, words) in zip(mistakes, expected, strict=True) if words not in mistake.what
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        'echo "starting torchrun"',
        "echo torchrun --master_port=29500",
        'printf "%s\\n" "MASTER_ADDR=$SLURM_NODELIST MASTER_PORT=29500"',
        "pip install torchrun",
        "./train.sh --launcher torchrun",
        "srun -c 8 --unbuffered ./train.sh --launcher torchrun",
        "srun -c 8 python train.py --launcher torchrun  # torchrun",
        "cat <<EOF > other.sbatch\n#SBATCH --ntasks-per-node=4\nsrun torchrun --master_port=29500\nEOF",
        "cat <<-'EOF'\n\t#SBATCH --time=1\n\tEOF",
        "x=$((1 << y))",
    ],
)
def test_words_that_start_nothing_are_no_launchers(line: str) -> None:
    top = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-task=1 --cpus-per-task=8\n"
    assert lint(f"{top}export OMP_NUM_THREADS=8\n{line}\nsrun -c 8 python train.py\n") == []


@pytest.mark.parametrize(
    "command",
    [
        "if ! srun -l torchrun",
        "srun --label /opt/venv/bin/torchrun",
        "srun -u -K -c 8 python -u -m torch.distributed.run",
        "srun -N 2 --cpu-bind none nsys profile -o out torchrun",
        "time srun env A=b numactl -N 0 torchrun",
        "srun $WRAPPER torchrun",
        "srun bash -lc 'cd /data && exec torchrun'",
        "CMD=torchrun\nsrun $CMD",
        "CMD='torchrun --nproc_per_node 2'\nCMD+=' -q'\nsrun bash -c \"$CMD\"",
    ],
)
def test_launchers_are_found_behind_other_words(command: str) -> None:
    top = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=8\nexport OMP_NUM_THREADS=8\n"
    assert [(mistake.line, mistake.what[:16]) for mistake in lint(f"{top}{command} train.py\n")] == [
        (2, "4 tasks per node")
    ]
