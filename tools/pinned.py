"""What is pinned, and what of it is needed at run time: from constraints.txt, pyproject.toml and metadata."""

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_CONSTRAINTS = ROOT / "constraints.txt"


def pinned_versions() -> dict[str, str]:
    """Version by name, as constraints.txt writes it."""
    lines = _CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pairs}


def core_names() -> list[str]:
    """All that `pip install scalescope` installs, without any extra, under the names of constraints.txt."""
    spelled = {canonicalize_name(name): name for name in pinned_versions()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [Requirement(text) for text in project["dependencies"]]
    names: set[str] = set()
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name not in names:
            names.add(name)
            waiting += _requirements_of(name)
    return sorted((spelled[name] for name in names), key=str.lower)


def _requirements_of(name: str) -> list[Requirement]:
    """What a package needs on Linux and macOS, without its extras."""
    texts = importlib.metadata.requires(name) or []
    requirements = [Requirement(text) for text in texts]
    environment = {"extra": "", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return [each for each in requirements if each.marker is None or each.marker.evaluate(environment)]
