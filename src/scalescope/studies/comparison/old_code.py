"""The code that an earlier run measured: a workload's file as git has it at that run's commit."""

import tarfile
from dataclasses import dataclass
from pathlib import Path

from scalescope.catalog.workloads.custom import file_of, in_file
from scalescope.errors import CannotRun
from scalescope.experiment.trial import Trial
from scalescope.results.provenance import git_archive, git_output, has_commit
from scalescope.results.run import Run

_SHORT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A state of the code around a workload that git can restore."""

    name: str
    root: Path  # of the checkout

    @property
    def short(self) -> str:
        return self.name[:_SHORT]


def changed_code(base: Run, new: Run, trial: Trial) -> Commit | None:
    """The commit of the base run, where its workload was another then; None where git cannot tell."""
    file = file_of(trial.workload)
    git = base.environment.get("git") or {}
    if file is None or not git.get("commit") or git.get("changed") is not False:
        return None
    root = git_output(file.resolve().parent, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    commit = Commit(name=str(git["commit"]), root=Path(root))
    if new.environment.get("git") == git or not has_commit(commit.root, commit.name):
        return None
    return commit


def at_commit(trial: Trial, commit: Commit, directory: Path) -> Trial:
    """The trial with its workload as it was at a commit, which is written below `directory`."""
    file = file_of(trial.workload)
    assert file is not None
    code = directory / commit.short
    if not code.exists():
        _restore(commit, code)
    old = code / file.resolve().relative_to(commit.root.resolve())
    if not old.is_file():
        raise CannotRun(f"--interleave: {file} is not in commit {commit.short}")
    return trial.replace(workload=in_file(trial.workload, old))


def _restore(commit: Commit, code: Path) -> None:
    """Write the files of a commit, links left out; the checkout itself is not touched."""
    archive = code.with_suffix(".tar")
    if not git_archive(commit.root, commit.name, archive):
        raise CannotRun(f"--interleave: git cannot restore commit {commit.short}")
    with tarfile.open(archive) as files:
        for member in files:
            target = (code / member.name).resolve()
            content = files.extractfile(member) if member.isfile() else None
            if content is not None and target.is_relative_to(code.resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
