"""What differs between the environments of two runs: hardware, versions, variables and code."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["hardware", "machine", "version", "variable", "code"]
UNKNOWN = "unknown"
UNSET = "not set"
_HARDWARE = ("cpu_model", "cores")  # and the GPUs: what makes another machine of it
_MACHINE = ("host", "system", "architecture")
_VERSIONS = ("torch_version", "cuda_version", "nccl_version", "driver_version", "python_version")
_COMMIT_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that two environments do not share."""

    kind: Kind
    name: str
    before: str
    after: str

    @property
    def is_known(self) -> bool:
        """Whether both sides recorded the fact; otherwise it proves nothing."""
        return UNKNOWN not in (self.before, self.after)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """All facts of two environment.json that are not the same, hardware first."""
    left, right = _facts(before), _facts(after)
    return tuple(
        Difference(kind=kind, name=name, before=left[kind, name], after=right[kind, name])
        for kind, name in _in_order(left, right)
        if left[kind, name] != right[kind, name]
    )


def other_hardware(differences: tuple[Difference, ...]) -> tuple[Difference, ...]:
    """The differences that make speeds of two runs speeds of two machines."""
    return tuple(
        difference for difference in differences if difference.kind == "hardware" and difference.is_known
    )


def hardware_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """The hardware that runs must share to be compared: processor, cores and GPUs, by name."""
    return {name: value for (kind, name), value in _facts(environment).items() if kind == "hardware"}


Facts = dict[tuple[Kind, str], str]


def _in_order(left: Facts, right: Facts) -> list[tuple[Kind, str]]:
    """Every fact of either side; a variable that only one of them has is not set on the other."""
    for facts, other in ((left, right), (right, left)):
        for key in other:
            facts.setdefault(key, UNSET)
    return list(left)


def _facts(environment: Mapping[str, Any]) -> Facts:
    machine = _mapping(environment.get("machine"))
    facts: Facts = {("hardware", name): _text(machine.get(name)) for name in _HARDWARE}
    facts["hardware", "gpus"] = _gpus(machine)
    facts |= {("machine", name): _text(machine.get(name)) for name in _MACHINE}
    facts["machine", "memory"] = _memory(machine.get("memory_bytes"))
    facts["version", "scalescope_version"] = _text(environment.get("scalescope_version"))
    facts |= {("version", name): _version(machine, name) for name in _VERSIONS}
    facts["code", "git"] = _commit(environment)
    for name, value in _mapping(environment.get("variables")).items():
        facts["variable", str(name)] = str(value)
    return facts


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _version(machine: Mapping[str, Any], name: str) -> str:
    """None is a library that is not there; unknown is a machine that was not recorded."""
    if name not in machine:
        return UNKNOWN
    return "none" if machine[name] is None else str(machine[name])


def _gpus(machine: Mapping[str, Any]) -> str:
    """`2 × NVIDIA H200`, in the order of the first of each name."""
    gpus = machine.get("gpus")
    if not isinstance(gpus, list | tuple):
        return UNKNOWN
    names = [str(_mapping(gpu).get("name", UNKNOWN)) for gpu in gpus]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"


def _memory(size: object) -> str:
    # A kernel keeps a little more or less of it for itself after every start.
    return f"{size / 2**30:.0f} GiB" if isinstance(size, int | float) else UNKNOWN


def _commit(environment: Mapping[str, Any]) -> str:
    git = _mapping(environment.get("git"))
    if not git.get("commit"):
        return UNKNOWN
    changed = " with changes" if git.get("changed") else ""
    return f"{str(git['commit'])[:_COMMIT_SHOWN]}{changed}"
