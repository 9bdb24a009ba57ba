"""Card of the training benchmark: what is trained, for how long, by which optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from scalescope.catalog import cards
from scalescope.catalog.setting import PerDevice, for_device, setting
from scalescope.catalog.training import Training
from scalescope.errors import BadInput

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(Training):
    """Training steps: forward, backward, gradient exchange, optimizer."""

    heading = "Training"
    takes_commands: ClassVar[bool] = True

    epochs: int = setting(1, "Number of epochs, each of steps_per_epoch steps.", low=1, high=1_000_000)
    steps_per_epoch: int | Literal["auto"] | None = setting(
        AUTO,
        "Steps per epoch, including warm-up; auto measures for --window; all uses every sample of the data "
        "set once.",
        low=1,
        high=100_000_000,
        none_word="all",
    )
    window: float | None = setting(
        PerDevice(cpu=1.5, cuda=3.0),
        "Measuring time per launch, after the warm-up; the ranks first agree on a number of steps. "
        "To count steps instead, use --steps-per-epoch and --epochs.",
        kind="duration",
        low=0.01,
        high=1e6,
        sweep=False,
        identity=False,
        common="Run",
        brief="Measuring time per launch.",
    )
    soak: float | None = setting(
        None,
        "Before the window, train until the GPU's clock and temperature are stable, or the step times on the "
        "CPU and without GPU sensors, but at most this long. For published figures.",
        kind="duration",
        low=1.0,
        high=1e5,
        sweep=False,
        identity=False,
    )
    min_steps: int = setting(
        5,
        "Minimum number of measured steps per timed launch, regardless of how long they take.",
        low=2,
        high=10_000,
        sweep=False,
        identity=False,
    )
    warmup_steps: int = setting(
        5,
        "Steps before the measurement starts; at least 3, because DDP's first iterations use other buckets "
        "than later ones. On a GPU, the warm-up takes at least one second, and at least 11 steps with DDP or "
        "ZeRO-1.",
        low=3,
        high=1_000_000,
    )
    eval: bool = setting(
        False,
        "After each epoch, measure the accuracy on training and validation data, with the clock stopped.",
    )
    stand_in: bool = setting(
        False,
        "With more ranks than cores, let each rank sleep for the compute time measured on one rank alone, "
        "instead of competing for cores; gradients and their exchange stay real.",
    )
    delay_ms: float = setting(
        0.0, "Time added to each step, to test whether it is detected.", low=0, internal=True
    )
    # Ablations: the same job with one thing removed, to measure what that thing costs.
    without_communication: bool = setting(
        False, "Send no gradients, to measure the cost of communication.", internal=True
    )
    with_preloaded_input: bool = setting(False, "Use batches that are already on the device.", internal=True)
    without_optimizer: bool = setting(
        False, "Do not update parameters, to measure the cost of the optimizer.", internal=True
    )

    @property
    def is_timed(self) -> bool:
        """Whether a launch measures for a time, and not for a number of steps."""
        return self.steps_per_epoch == AUTO

    def steps(self) -> int:
        """How many steps a launch takes, warm-up included; 0 where only its ranks know."""
        return self.epochs * self.steps_per_epoch if isinstance(self.steps_per_epoch, int) else 0

    @staticmethod
    def warmup_iterations(settings: Mapping[str, Any]) -> int | None:
        """Steps before the measured ones; on a GPU a timed launch may make more."""
        return warmup_of(settings) if "warmup_steps" in settings else None

    @staticmethod
    def measured_iterations(settings: Mapping[str, Any]) -> int | None:
        """Steps that a launch measures; None where the data or the window decides."""
        if not isinstance(settings.get("steps_per_epoch"), int):
            return None
        return int(settings["epochs"] * settings["steps_per_epoch"] - warmup_of(settings))

    @staticmethod
    def settle(values: dict[str, Any]) -> None:
        """Epochs have a length: where several are asked for, or accuracies at their end, it is not a time.

        A launch that counts its steps has no window.
        """
        if values["steps_per_epoch"] == AUTO and (values["epochs"] > 1 or values["eval"]):
            epoch_steps = cards.card("data", values["data"]).epoch_steps
            values["steps_per_epoch"] = for_device(epoch_steps, values["device"])
        if values["steps_per_epoch"] != AUTO:
            values["window"] = None

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse a warm-up that leaves nothing to measure, endless epochs, and --eval without a meaning."""
        Training.check_job(values)
        data = cards.card("data", values["data"])
        if values["steps_per_epoch"] is None and not data.ends:
            raise BadInput(f"steps_per_epoch all: {values['data']} data has no end; give a number")
        counted = isinstance(values["steps_per_epoch"], int)
        steps = values["epochs"] * values["steps_per_epoch"] if counted else 0
        if counted and values["warmup_steps"] >= steps:
            raise BadInput(
                f"warmup_steps must be less than the launch's {steps} steps, got {values['warmup_steps']}"
                f"; steps_per_epoch {values['warmup_steps'] + 10} measures 10 steps"
            )
        if values["steps_per_epoch"] == AUTO and values["window"] is None:
            raise BadInput("window must be a time such as 3s; use --steps-per-epoch to count steps instead")
        if values["steps_per_epoch"] != AUTO and values["soak"] is not None:
            raise BadInput("soak cannot be used with a number of steps or epochs; use --window")
        if values["eval"] and not data.has_validation:
            raise BadInput(
                f"--eval requires validation data, which {values['data']} lacks; use --data ag_news or imdb"
            )
        strategy = cards.card("strategies", values["strategy"])
        if values["eval"] and not strategy.evaluates:
            raise BadInput(f"--eval cannot be used with strategy {values['strategy']}; use ddp")
        if values["stand_in"] and values["eval"]:
            raise BadInput("--stand-in cannot be used with --eval: ranks that sleep compute no accuracy")


def warmup_of(settings: Mapping[str, Any]) -> int:
    """The steps that ranks make before the measured ones: on a GPU at least as many as the strategy needs.

    Where steps are counted, they are taken from those to measure if at least as many are left.
    """
    asked = int(settings["warmup_steps"])
    if settings.get("device") != "cuda":
        return asked
    least: int = max(asked, cards.card("strategies", settings["strategy"]).least_gpu_warmup_steps)
    per_epoch = settings.get("steps_per_epoch", AUTO)
    if per_epoch == AUTO:
        return least
    leaves_enough = per_epoch is not None and settings["epochs"] * per_epoch >= 2 * least
    return least if leaves_enough else asked
