"""Number formats that a machine emulates: which trials use them, and what that costs."""

from collections.abc import Iterable

from scalescope.experiment.machine import Machine, Precisions, PrecisionSupport
from scalescope.experiment.trial import Trial

# The settings that say in which format matrix products are computed. A communication hook is not among them:
# casts and sums cost little in any format.
_FORMAT_SETTINGS = ("precision", "fsdp_param_dtype")
_DEVICES = {"cpu": "this processor", "cuda": "this GPU"}


def emulated_in(trial: Trial, machine: Machine) -> tuple[PrecisionSupport, ...]:
    """The formats of a trial that its device emulates."""
    names = dict.fromkeys(str(trial.settings[name]) for name in _FORMAT_SETTINGS if name in trial.settings)
    supports = (machine.support_of(name, trial.device) for name in names)
    return tuple(support for support in supports if support.emulated)


def emulation_text(support: PrecisionSupport, device: str) -> str:
    """That a format is emulated, and what a matrix product in it costs where that was measured."""
    if support.name == "tf32":  # a mode of the matrix units: without them, torch ignores it
        return f"tf32 is not available on {_DEVICES[device]}: matrix products are computed in fp32"
    text = f"{support.name} is emulated on {_DEVICES[device]}"
    if support.slowdown is None:
        return f"{text}, which may take many times as long as fp32"
    return f"{text}: a matrix product takes about {_times(support.slowdown)} as long as in fp32"


def emulation_notes(trials: Iterable[Trial], machine: Machine) -> tuple[str, ...]:
    """One sentence for every format that the trials use and their device emulates."""
    texts = dict.fromkeys(
        emulation_text(support, trial.device) for trial in trials for support in emulated_in(trial, machine)
    )
    return tuple(f"{text}." for text in texts)


def precisions_text(precisions: Precisions) -> str:
    """`bf16 native (0.42 times as long as fp32), fp16 emulated`; unknown where nothing was measured."""
    return ", ".join(map(_support_text, precisions)) or "unknown"


def _support_text(support: PrecisionSupport) -> str:
    state = "emulated" if support.emulated else "native" if support.native else "unknown"
    measured = "" if support.slowdown is None else f" ({_times(support.slowdown)} as long as fp32)"
    return f"{support.name} {state}{measured}"


def _times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 10 else f"{factor:.2g} times"
