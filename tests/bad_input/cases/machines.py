"""What the machine or the environment cannot do: exit code 3, and what would work."""

from scalescope.errors import ExitCode
from tests.bad_input.case import Case, Folder, StoredRun, of_command

_CANNOT = ExitCode.CANNOT_RUN
_STORAGE = ExitCode.STORAGE
_RANK = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29511",
}
_STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NODELIST": "n1",
}

CASES = (
    of_command(
        "more ranks than GPUs",
        "train --world-size 4",
        "4 ranks on 2 GPU(s)",
        "--oversubscribe",
        gpus=2,
        code=_CANNOT,
    ),
    of_command("split without a GPU", "train --split-gpu 2", "--split-gpu requires a CUDA GPU", code=_CANNOT),
    of_command(
        "split for too many ranks",
        "train --split-gpu 2 --world-size 3",
        "--split-gpu 2 is for at most 2 ranks",
        gpus=1,
    ),
    of_command(
        "link with nccl",
        "train --link 1gbit",
        "--link cannot be used with nccl",
        "--device cpu",
        gpus=2,
        code=_CANNOT,
    ),
    of_command(
        "ranks beyond all cores",
        "train --device cpu --world-size 4096",
        "4096 ranks on 2 core(s)",
        "--oversubscribe",
        code=_CANNOT,
    ),
    of_command(
        "batch beyond the memory", "train --batch-size 1e9", "needs at least", "--allow-oom", code=_CANNOT
    ),
    of_command("collective of one rank", "comm --world-size 1", "at least 2"),
    of_command(
        "output folder is a file",
        "train --device=cpu --output-dir=f",
        "f: cannot be written: File exists",
        files={"f": "x"},
        code=_STORAGE,
    ),
    of_command(
        "output folder holds a run",
        "train --device=cpu --output-dir=r",
        "r already contains a run",
        "--resume",
        files={"r": StoredRun("train")},
        leaves=True,
    ),
    Case(
        name="output folder of 300 letters",
        command=("train", "--device=cpu", "--output-dir=" + "n" * 300),
        code=_STORAGE,
        says=("File name too long",),
    ),
    of_command(
        "rank that is not a number", "train", "RANK", environment={**_RANK, "RANK": "zero"}, code=_CANNOT
    ),
    of_command(
        "host list that is not one", "train", "n[1-", environment={**_STEP, "SLURM_STEP_NODELIST": "n[1-"}
    ),
    of_command(
        "host list of a million hosts",
        "train",
        "n[1-99999999]",
        environment={**_STEP, "SLURM_STEP_NODELIST": "n[1-99999999]"},
    ),
    of_command(
        "command below torchrun", "train -- python t.py", "a command starts its own ranks", environment=_RANK
    ),
    of_command(
        "job inside a job", "train --launcher slurm", "--launcher slurm submits a job", environment=_RANK
    ),
    of_command(
        "job inside a step",
        "train --launcher slurm --nodes 2",
        "cannot be used inside one",
        environment=_STEP,
    ),
    of_command(
        "no sbatch",
        "train --launcher slurm --time 10m",
        "sbatch was not found: --launcher slurm ",
        environment={"PATH": "/nowhere"},
        code=_CANNOT,
        leaves=True,
    ),
    of_command(
        "nsys as a job",
        "train --launcher slurm --time 10m --profile --nsys --dry-run",
        "--nsys cannot be used with --launcher slurm",
    ),
    of_command(
        "interleave where nothing was measured",
        "compare r d --interleave",
        "d",
        files={"r": StoredRun("train"), "d": Folder()},
    ),
)
