"""environment.json as its readers expect it: what has another type is left out, and named."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from scalescope.experiment.machine import Machine
from scalescope.results.stored import ENVIRONMENT
from scalescope.results.stored.regular_files import read_json, why_unreadable
from scalescope.results.stored.validation import without_misfits
from scalescope.results.topology import Topology


class _Interface(BaseModel, defer_build=True):
    name: str
    state: str | None = None
    speed_mbit: int | None = None


class _System(BaseModel, defer_build=True):
    interfaces: list[_Interface] | None = None
    topology: Topology | None = None


class _Git(BaseModel, defer_build=True):
    commit: str | None = None
    changed: bool | None = None


class _Environment(BaseModel, defer_build=True):
    """What readers use of the file; it may have more."""

    environment_id: str = ""
    scalescope_version: str = ""
    machine: Machine | None = None
    nodes: dict[str, Machine] = {}
    variables: dict[str, str] = {}
    git: _Git | None = None
    system: _System | None = None
    systems: dict[str, _System] = {}
    starts: list[list[str]] = []


def read_environment(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The environment of a run, empty where there is none, and warnings about what is left out."""
    path = folder / ENVIRONMENT
    stored: Any = read_json(path)
    if stored is None:
        problem = why_unreadable(path)
        return {}, () if problem is None else (problem,)
    warnings: list[str] = []
    if without_misfits(_Environment, stored, "the file", warnings.append) is None:
        stored = {}
    if stored.get("machine") is None:
        stored.pop("machine", None)  # no run stores that it has none
    return stored, tuple(f"{path}: left out: {warning}" for warning in warnings)
