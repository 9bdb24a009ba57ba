"""What ranks of torchrun or srun cannot be, however new they are."""

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.trial import Trial


def check_for_ranks(trial: Trial, ranks: int) -> None:
    """Refuse a trial that so many ranks of torchrun or srun cannot be: we started neither them nor a link."""
    if trial.env:
        raise BadInput(
            "--env cannot be used under torchrun or srun; export the variable before the ranks start"
        )
    if trial.link or trial.split_gpu:
        raise BadInput("--link and --split-gpu cannot be used under torchrun or srun")
    if trial.world_size > ranks:
        raise CannotRun(f"{trial.world_size} ranks were requested, but only {ranks} are running")
