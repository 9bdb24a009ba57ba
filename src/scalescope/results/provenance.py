"""Provenance: hardware, versions, code state and the environment variables that change measurements."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import scalescope
from scalescope.experiment.machine import Machine
from scalescope.inspection import TOOL_LIMIT_S, recorded_variables, run_tool
from scalescope.results.result import Result

# What may differ between two runs that are still the same machine: its name, and what was measured of it. The
# model of a processor or GPU stands for what it can do, and runs older than these facts keep their id.
_NOT_IDENTITY = ("host", "precisions", "core_flops_per_s")
_NOT_IDENTITY_OF_GPU = ("uuid", "pci_bus", "compute_capability", "precisions")
# What ranks record about the file of a user's workload.
WORKLOAD_FILE = "workload_file"
WORKLOAD_SHA256 = "workload_sha256"
# The table of the files of a measured script: itself and the local modules that it imports.
SCRIPT_FILES = "script_files"
_MOST_SCRIPT_FILES = 1000
_LARGEST_SCRIPT_BYTES = 4 << 20
# Folders of what is installed, or generated while a script runs.
_NOT_LOCAL = re.compile(r"/(?:site-packages|dist-packages|torchinductor_[^/]*)/")
_ARCHIVE_LIMIT_S = 60.0  # all files of a checkout may be many
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
# What a checkout can make git run: a monitor, hooks, helpers of remotes, programs that verify signatures.
_SAFE_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "protocol.allow=never",
    "gpg.program=false",
    "gpg.ssh.program=false",
    "gpg.x509.program=false",
)
_SAFE_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}


def sha256_of(path: Path) -> str | None:
    """The SHA-256 of a file; None where it cannot be read, or is a device or pipe, which may never end."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    except OSError:
        return None


def local_files(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """By file, the SHA-256 of a script's own code: itself, and modules below its or the working folder."""
    try:
        here = Path.cwd()
    except OSError:  # somebody removed it
        return {}
    named = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in dict(modules).items()}
    files = {
        name: Path(os.path.normpath(here / file))
        for name, file in named.items()
        if isinstance(file, str) and name != "sitecustomize"  # which may be ours
    }
    mains = [files[name] for name in ("__main__", "__mp_main__") if name in files]
    roots = [here, *(path.parent for main in mains for path in (main, main.resolve()))]
    installed = [Path(sysconfig.get_path("stdlib")), Path(scalescope.__file__).parent]
    digests: dict[str, str] = {}
    for file in sorted({*files.values()}):
        is_local = file in mains or any(file.is_relative_to(root) for root in roots)
        is_installed = any(file.is_relative_to(root) for root in installed)
        if not is_local or is_installed or _NOT_LOCAL.search(str(file)):
            continue
        with contextlib.suppress(OSError):
            if file.stat().st_size <= _LARGEST_SCRIPT_BYTES and (sha256 := sha256_of(file)) is not None:
                digests[str(file)] = sha256
    return dict(list(digests.items())[:_MOST_SCRIPT_FILES])


@dataclass(frozen=True, slots=True)
class WorkloadFile:
    """A file of a user's workload or script as a launch used it."""

    path: Path
    sha256: str


def workload_files(results: Iterable[Result]) -> dict[str, tuple[WorkloadFile, ...]]:
    """By workload, the files that launches used, each once unless it changed; some launches do not say."""
    files: dict[str, dict[WorkloadFile, None]] = {}
    for result in results:
        for record in result.ranks[:1] if result.status != "invalid" else ():
            used = [(record.counters.get(WORKLOAD_FILE), record.counters.get(WORKLOAD_SHA256))]
            used += [(row.get("path"), row.get("sha256")) for row in record.tables.get(SCRIPT_FILES, ())]
            for path, sha256 in used:
                if not (isinstance(path, str) and isinstance(sha256, str)):
                    continue
                files.setdefault(result.trial.workload, {})[WorkloadFile(Path(path), sha256)] = None
    return {workload: tuple(used) for workload, used in files.items()}


def describe_environment(
    machine: Machine, version: str, nodes: Mapping[str, Machine] | None = None
) -> dict[str, Any]:
    """Everything environment.json holds; `nodes` are the hosts of the ranks, where they are several."""
    facts = dataclasses.asdict(machine)
    nodes = nodes or {machine.host: machine}
    return {
        "environment_id": environment_id(machine),
        "scalescope_version": version,
        "machine": facts,
        "nodes": {host: dataclasses.asdict(node) for host, node in nodes.items()},
        "variables": recorded_variables(os.environ),
        "git": git_state(Path.cwd()),
    }


def environment_id(machine: Machine) -> str:
    """Hash of hardware and versions: equal where two runs may be compared."""
    facts = {k: v for k, v in dataclasses.asdict(machine).items() if k not in _NOT_IDENTITY}
    if machine.ranks_per_node is None:
        del facts["ranks_per_node"]  # older than the field: runs of one host keep their id
    facts["gpus"] = [
        {name: value for name, value in gpu.items() if name not in _NOT_IDENTITY_OF_GPU}
        for gpu in facts["gpus"]
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit and cleanliness of the code around `directory`; None outside a checkout or without git."""
    commit = git_output(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    filters = _without_filters_of_checkout(directory)
    changed = None
    if filters is not None:
        changed = git_output(
            directory, *filters, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty"
        )
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def git_archive(root: Path, commit: str, archive: Path) -> bool:
    """Write the files of a commit into a tar file; says whether git could."""
    filters = _without_filters_of_checkout(root)
    if filters is None or not _COMMIT.fullmatch(commit):
        return False
    words = (*filters, "archive", "--format=tar", f"--output={archive}", commit)
    return git_output(root, *words, limit_s=_ARCHIVE_LIMIT_S) is not None


def has_commit(root: Path, commit: str) -> bool:
    """Whether a checkout has a commit; a stored name that is not a commit's could be an option of git."""
    return bool(_COMMIT.fullmatch(commit)) and git_output(root, "cat-file", "-e", commit) is not None


def git_output(directory: Path, *arguments: str, limit_s: float = TOOL_LIMIT_S) -> str | None:
    """What git prints; None where it fails. Nothing that the configuration of the checkout names is run."""
    switches = [word for setting in _SAFE_SETTINGS for word in ("-c", setting)]
    environment = {**os.environ, **_SAFE_VARIABLES}
    try:
        done = run_tool(
            ["git", "--no-pager", *switches, *arguments], cwd=directory, env=environment, limit_s=limit_s
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _without_filters_of_checkout(directory: Path) -> tuple[str, ...] | None:
    """Switches that turn off the filters which the checkout itself configures; None where they cannot be.

    `status` and `archive` would run them. Those of the user, such as git-lfs, stay.
    """
    listed = git_output(directory, "config", "--list", "--show-scope", "--name-only", "-z")
    if listed is None:
        return None
    words = listed.strip("\0").split("\0")
    of_checkout = {
        name for scope, name in zip(words[::2], words[1::2], strict=False) if scope in ("local", "worktree")
    }
    switches: list[str] = []
    for name in sorted(of_checkout):
        if name.startswith("filter."):
            if "=" in name:  # cannot be named in a switch
                return None
            switches += ["-c", f"{name}=false" if name.endswith(".required") else f"{name}="]
    return tuple(switches)
