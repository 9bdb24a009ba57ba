"""What the machine or the environment cannot do: exit code 3, and what would work."""

from scalescope.errors import ExitCode
from tests.bad_input.case import Case, Folder, StoredRun

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
    Case(
        name="more ranks than GPUs",
        command=("train", "--world-size", "4"),
        gpus=2,
        code=_CANNOT,
        says=("4 ranks on 2 GPU(s)", "--oversubscribe"),
    ),
    Case(
        name="more ranks than GPUs in a sweep",
        command=("scale", "--world-size", "1,2,8"),
        gpus=2,
        code=_CANNOT,
        says=("8 ranks on 2 GPU(s)", "--oversubscribe"),
    ),
    Case(
        name="nccl without CUDA",
        command=("train", "--backend", "nccl"),
        code=_CANNOT,
        says=("--backend nccl requires CUDA GPUs; use --backend gloo",),
    ),
    Case(
        name="cuda without CUDA",
        command=("train", "--device", "cuda"),
        code=_CANNOT,
        says=("--device cuda: torch finds no GPU here; use --device cpu",),
    ),
    Case(
        name="split without a GPU",
        command=("train", "--split-gpu", "2"),
        code=_CANNOT,
        says=("--split-gpu requires a CUDA GPU",),
    ),
    Case(
        name="split for too many ranks",
        command=("train", "--split-gpu", "2", "--world-size", "3"),
        gpus=1,
        says=("--split-gpu 2 is for at most 2 ranks",),
    ),
    Case(
        name="link with nccl",
        command=("train", "--link", "1gbit"),
        gpus=2,
        code=_CANNOT,
        says=("--link cannot be used with nccl", "--device cpu"),
    ),
    Case(
        name="ranks beyond all cores",
        command=("train", "--device", "cpu", "--world-size", "4096"),
        code=_CANNOT,
        says=("4096 ranks on 2 core(s)", "--oversubscribe"),
    ),
    Case(
        name="batch beyond the memory",
        command=("train", "--batch-size", "1e9"),
        code=_CANNOT,
        says=("needs at least", "--allow-oom"),
    ),
    Case(name="collective of one rank", command=("comm", "--world-size", "1"), says=("at least 2",)),
    Case(
        name="output folder is a file",
        command=("train", "--device=cpu", "--output-dir=f"),
        files={"f": "x"},
        code=_STORAGE,
        says=("f: cannot be written: File exists",),
    ),
    Case(
        name="output folder below a file",
        command=("train", "--device=cpu", "--output-dir=f/x"),
        files={"f": "x"},
        code=_STORAGE,
        says=("f/x: cannot be written: Not a directory",),
    ),
    Case(
        name="output folder holds a run",
        command=("train", "--device=cpu", "--output-dir=r"),
        files={"r": StoredRun("train")},
        leaves=True,
        says=("r already holds a run", "--resume"),
    ),
    Case(
        name="output folder of 300 letters",
        command=("train", "--device=cpu", "--output-dir=" + "n" * 300),
        code=_STORAGE,
        says=("File name too long",),
    ),
    Case(
        name="rank that is not a number",
        command=("train",),
        environment={**_RANK, "RANK": "zero"},
        code=_CANNOT,
        says=("RANK",),
    ),
    Case(
        name="rank in another script",
        command=("check",),
        environment={**_RANK, "RANK": "²"},
        code=_CANNOT,
        says=("RANK",),
    ),
    Case(
        name="step that is not a number",
        command=("train",),
        environment={**_STEP, "SLURM_PROCID": "first"},
        code=_CANNOT,
        says=("SLURM_PROCID is 'first'",),
    ),
    Case(
        name="step in another script",
        command=("train",),
        environment={**_STEP, "SLURM_PROCID": "²"},
        code=_CANNOT,
        says=("SLURM_PROCID",),
    ),
    Case(
        name="host list that is not one",
        command=("train",),
        environment={**_STEP, "SLURM_STEP_NODELIST": "n[1-"},
        says=("n[1-",),
    ),
    Case(
        name="host list of a million hosts",
        command=("train",),
        environment={**_STEP, "SLURM_STEP_NODELIST": "n[1-99999999]"},
        says=("n[1-99999999]",),
    ),
    Case(
        name="command below torchrun",
        command=("train", "--", "python", "t.py"),
        environment=_RANK,
        says=("a command starts its own ranks",),
    ),
    Case(
        name="job inside a job",
        command=("train", "--launcher", "slurm"),
        environment=_RANK,
        says=("--launcher slurm submits a job",),
    ),
    Case(
        name="no sbatch",
        command=("train", "--launcher", "slurm", "--time", "10m"),
        environment={"PATH": "/nowhere"},
        code=_CANNOT,
        says=("sbatch",),
        leaves=True,
    ),
    Case(
        name="nsys as a job",
        command=("train", "--launcher", "slurm", "--time", "10m", "--profile", "--nsys", "--dry-run"),
        says=("--nsys cannot be used with --launcher slurm",),
    ),
    Case(
        name="interleave where nothing was measured",
        command=("compare", "r", "d", "--interleave"),
        files={"r": StoredRun("train"), "d": Folder()},
        says=("d",),
    ),
)
