"""Jobs in words: the short name of what is trained, and the unit of its speed."""

import itertools
from collections.abc import Iterable
from pathlib import PurePath

from scalescope.analysis.configurations import SAMPLES, Configuration
from scalescope.errors import BadInput
from scalescope.experiment.command_line import words_of
from scalescope.experiment.trial import Trial

_SCRIPT = ".py"
_MODULE = frozenset({"-m", "--module"})
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def job_name(trial: Trial) -> str:
    """The workload; of a command the name of its script, such as `train.py`."""
    return command_name(trial.command) if trial.is_command else trial.workload


def command_name(command: str) -> str:
    """The script of a command, or the module that it runs, or else its program."""
    try:
        words = words_of(command)
    except BadInput:  # a stored command is shown, whatever it is
        return command
    scripts = [PurePath(word).name for word in words if PurePath(word).suffix == _SCRIPT]
    modules = [module for flag, module in itertools.pairwise(words) if flag in _MODULE]
    names = [*scripts, *(module for module in modules if module not in _LAUNCHERS), PurePath(words[0]).name]
    return names[0]


def units_of(measured: Iterable[Configuration]) -> str:
    """What speeds count, in headings and at axes: `samples`, `images`, `tokens` or `steps`."""
    return " or ".join(sorted({configuration.unit for configuration in measured})) or SAMPLES
