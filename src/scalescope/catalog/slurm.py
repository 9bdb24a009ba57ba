"""Options of a SLURM job; none of them changes what a trial measures."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """The job: how many nodes, which resources of each, for how long."""

    launcher: str = setting(
        "local",
        "How ranks are started: local starts them here; slurm submits a job and shows its results.",
        choices=("local", "slurm"),
        sweep=False,
        common="Ranks",
        brief="local, or slurm: submit a job.",
    )
    nodes: int = setting(1, "Number of nodes.", low=1, high=100_000, sweep=False)
    gpus_per_node: int | None = setting(
        None, "GPUs per node, with one rank per GPU.", low=1, high=64, sweep=False
    )
    tasks_per_node: int | None = setting(
        None, "Ranks per node, for jobs on the CPU; 1 by default.", low=1, high=4096, sweep=False
    )
    cpus_per_task: int | None = setting(
        None,
        "Cores per rank; auto is 4 for a GPU rank and 1 on the CPU.",
        low=1,
        high=4096,
        none_word="auto",
        sweep=False,
    )
    partition: str | None = setting(None, "Partition to submit to.", sweep=False)
    account: str | None = setting(None, "Account to charge.", sweep=False)
    time: str | None = setting(
        None,
        "Time limit of the job: 30m, 2h or SLURM's 1-12:00:00, at least 5m. A job that reaches it is "
        "requeued and continues.",
        sweep=False,
    )
    queue_timeout: float | None = setting(
        None,
        "Time limit for waiting in the queue: 30m, 2h; a job that waits longer is cancelled. Without it, the "
        "command waits indefinitely.",
        kind="duration",
        low=1,
        sweep=False,
    )
    slurm_template: str | None = setting(
        None,
        "File to use instead of the built-in sbatch script, with the same {placeholders}.",
        sweep=False,
        holds_path=True,
    )


# What a file or a command says of the job and not of the measurement.
SHELL_TEXT = ("setup", "slurm_template")  # what a shell of the job reads
JOB_KEYS = ("setup", *(field.name for field in settings_of(Slurm)))
