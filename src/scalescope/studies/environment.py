"""Where a run is measured: what environment.json says of it, and whether the run may go on elsewhere.

Launches of another kind of machine are not repeats; those of another machine of the same kind are.
"""

import dataclasses
from pathlib import Path
from typing import Any

from scalescope.errors import CannotRun
from scalescope.experiment.machine import Gpu, Machine, gpu_names
from scalescope.launch.launcher import Launcher
from scalescope.results.provenance import describe_environment, environment_id
from scalescope.results.run import load_run
from scalescope.results.stored.records import read_environment
from scalescope.studies.plan import Plan
from scalescope.version import __version__

_MEMORY_TOLERANCE = 0.05  # the firmware keeps some for itself, and not the same on every node
_EVERY_ONE_S_OWN = (
    "host",
    "memory_bytes",
    "gpus",
    "precisions",
    "core_flops_per_s",
)  # compared otherwise, or not at all


def environment_record(path: Path, plan: Plan, launcher: Launcher, *, resume: bool) -> dict[str, Any] | None:
    """Hardware and versions of every host, and everything `check` looks at; None where all is stored."""
    stored = read_environment(path)[0] if resume else {}
    if not stored or _measured_nothing_there(stored, plan):
        return _described(plan, launcher)
    return _with_new_hosts(stored, launcher)


def _measured_nothing_there(stored: dict[str, Any], plan: Plan) -> bool:
    """Whether a start that left no launch was on another kind of machine; who only reads changes nothing."""
    others = stored.get("environment_id") != environment_id(plan.machine)
    return others and plan.environment is None and plan.only != ()


def _described(plan: Plan, launcher: Launcher) -> dict[str, Any]:
    described = describe_environment(plan.machine, __version__, launcher.nodes())
    systems = launcher.systems()
    record = {**described, "system": next(iter(systems.values()))}
    return {**record, "systems": systems} if len(systems) > 1 else record


def _with_new_hosts(stored: dict[str, Any], launcher: Launcher) -> dict[str, Any] | None:
    """The record with the hosts that a run went on to; `starts` has those of each start."""
    before, now = stored.get("nodes"), launcher.nodes()
    if not before or set(now) <= set(before):
        return None
    systems = stored.get("systems") or {next(iter(before)): stored.get("system")}
    return {
        **stored,
        "nodes": before | {host: dataclasses.asdict(node) for host, node in now.items()},
        "starts": [*stored.get("starts", [list(before)]), list(now)],
        "systems": {**systems, **launcher.systems()},
    }


def continued_environment(path: Path, machine: Machine) -> str | None:
    """The environment id that new launches of a stored run carry; refuses another kind of machine.

    None where nothing was measured yet: then the run's machine is the one it goes on with.
    """
    run = load_run(path)
    here = environment_id(machine)
    ids = {result.environment_id for result in run.results}
    if ids <= {here}:
        return None
    before, stored = _recorded(run.environment)
    unlike = ["what the run does not say"] if before is None else unlike_fields(before, machine)
    if unlike or not ids <= {here, stored}:
        named = ", ".join(unlike) or "environments of the run's own launches"
        raise CannotRun(
            f"--resume: {path} was measured on another machine or torch; these differ: {named}; "
            "start a new run"
        )
    return stored


def unlike_fields(before: Machine, now: Machine) -> list[str]:
    """In what two machines differ that makes them two kinds: `cores (64, now 32)`."""
    names = [field.name for field in dataclasses.fields(Machine) if field.name not in _EVERY_ONE_S_OWN]
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in names]
    differing = [f"{name} ({old}, now {new})" for name, old, new in pairs if old != new]
    if not _about_equal(before.memory_bytes, now.memory_bytes):
        differing.append(f"memory_bytes ({before.memory_bytes}, now {now.memory_bytes})")
    if not _alike(before.gpus, now.gpus):
        differing.append(f"gpus ({_gpus_of(before)}, now {_gpus_of(now)})")
    return differing


def _recorded(environment: dict[str, Any]) -> tuple[Machine | None, str]:
    """The machine that the run was begun on, and its id."""
    machine = environment.get("machine")
    return None if machine is None else Machine.from_json(machine), environment.get("environment_id", "")


def _alike(before: tuple[Gpu, ...], now: tuple[Gpu, ...]) -> bool:
    return len(before) == len(now) and all(
        old.name == new.name and _about_equal(old.memory_bytes, new.memory_bytes)
        for old, new in zip(before, now, strict=True)
    )


def _about_equal(before: int | None, now: int | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before - now) <= _MEMORY_TOLERANCE * max(before, now)


def _gpus_of(machine: Machine) -> str:
    sizes = sorted({gpu.memory_bytes for gpu in machine.gpus})
    return gpu_names(machine) + "".join(f" of {size} bytes" for size in sizes)
