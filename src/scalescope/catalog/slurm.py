"""What a SLURM job is asked for; none of it changes what a trial measures."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """The job: how many nodes, what of each, for how long."""

    launcher: str = setting(
        "local",
        "Who starts the ranks: local does so here, slurm submits a job, follows it and shows what it found.",
        choices=("local", "slurm"),
        sweep=False,
    )
    nodes: int = setting(1, "Nodes of the job.", low=1, high=100_000, sweep=False)
    gpus_per_node: int | None = setting(
        None, "GPUs of each node, with one rank for each.", low=1, high=64, sweep=False
    )
    tasks_per_node: int | None = setting(
        None, "Ranks of each node, for jobs on the CPU; 1 unless given.", low=1, high=4096, sweep=False
    )
    cpus_per_task: int | None = setting(
        None,
        "Cores of each rank; auto is 4 beside a GPU and 1 on the CPU.",
        low=1,
        high=4096,
        none_word="auto",
        sweep=False,
    )
    partition: str | None = setting(None, "Partition to submit to.", sweep=False)
    account: str | None = setting(None, "Account that pays.", sweep=False)
    time: str | None = setting(
        None, "Time limit: 30m, 2h or SLURM's 1-12:00:00, 5m at least; the job goes on after it.", sweep=False
    )
    slurm_template: str | None = setting(
        None, "File to use in place of our sbatch script, with the same {placeholders}.", sweep=False
    )
