"""Provenance: what is recorded of the machine, and what never is."""

import dataclasses
import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from scalescope.experiment.machine import Gpu, PrecisionSupport
from scalescope.results import provenance
from scalescope.results.provenance import (
    WorkloadFile,
    describe_environment,
    environment_id,
    git_archive,
    git_state,
    has_commit,
    local_files,
    recorded_variables,
    sha256_of,
    workload_files,
)
from tests.builders.results import make_result, make_trial
from tests.simulated.launcher import TWO_CORES

GPU = Gpu(index=0, name="H100", memory_bytes=80 << 30, uuid="GPU-1")


def test_secrets_are_never_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SECRET_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PATH_TO_NCCL_", "MY_OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    text = json.dumps(describe_environment(TWO_CORES, "1.2.3"))
    assert "hunter2" not in text
    assert "SECRET_TOKEN" not in text
    assert "NCCL_ALGO" in text


def test_variables_that_change_measurements_are_recorded_in_order() -> None:
    environment = {
        "OMP_NUM_THREADS": "2",
        "HOME": "/root",
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_HOME": "/secret",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "SLURM_JOB_ID": "17",
        "SLURM_JWT": "token",
    }
    recorded = recorded_variables(environment)
    assert list(recorded) == sorted(set(environment) - {"HOME", "TORCH_HOME", "SLURM_JWT"})
    assert recorded["OMP_NUM_THREADS"] == "2"


def test_the_same_hardware_and_versions_are_the_same_environment() -> None:
    here = dataclasses.replace(TWO_CORES, gpus=(GPU,))
    there = dataclasses.replace(
        TWO_CORES, host="other", gpus=(dataclasses.replace(GPU, uuid="GPU-2", pci_bus="0000:1b:00.0"),)
    )
    assert environment_id(here) == environment_id(there)


@pytest.mark.parametrize(
    "change", [{"torch_version": "9.9"}, {"cores": 64}, {"gpus": (GPU,)}, {"cpu_model": "other"}]
)
def test_other_hardware_or_versions_are_another_environment(change: dict[str, object]) -> None:
    assert environment_id(dataclasses.replace(TWO_CORES, **change)) != environment_id(TWO_CORES)  # type: ignore[arg-type]


def test_the_environment_describes_the_machine_and_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = describe_environment(TWO_CORES, "1.2.3")
    assert environment["environment_id"] == environment_id(TWO_CORES)
    assert environment["scalescope_version"] == "1.2.3"
    assert environment["machine"]["cpu_model"] == "fake processor"
    assert environment["git"] is None


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_state_of_the_code_is_recorded(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("1")
    assert git_state(tmp_path) == {"commit": commit, "changed": False}
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == {"commit": commit, "changed": True}


def test_without_git_the_code_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_what_was_measured_of_a_machine_is_recorded_but_not_its_identity() -> None:
    support = PrecisionSupport(name="bf16", native=True, slowdown=0.4)
    gpu = dataclasses.replace(GPU, compute_capability=(9, 0), precisions=(support,))
    here = dataclasses.replace(TWO_CORES, gpus=(gpu,), precisions=(support,))
    assert environment_id(here) == environment_id(dataclasses.replace(TWO_CORES, gpus=(GPU,)))
    machine = json.loads(json.dumps(describe_environment(here, "1.2.3")))["machine"]
    assert machine["precisions"] == [{"name": "bf16", "native": True, "slowdown": 0.4}]
    assert machine["gpus"][0]["compute_capability"] == [9, 0]


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"x = 1\n")
    assert sha256_of(tmp_path / "a.py") == hashlib.sha256(b"x = 1\n").hexdigest()
    assert sha256_of(tmp_path / "b.py") is None
    assert sha256_of(Path("/dev/null")) is None


def test_the_files_of_workloads_are_those_that_launches_recorded() -> None:
    trial = make_trial().replace(workload="mine.py:build")
    results = [make_result(trial, [[0.1], [0.1]], launch=number) for number in range(3)]
    for result, sha256 in zip(results, ("aa", "aa", "bb"), strict=True):
        result.ranks[0].counters.update(workload_file="/x/mine.py", workload_sha256=sha256)
    older = make_result(make_trial().replace(workload="other.py:build"), [[0.1]])
    assert workload_files([*results, older]) == {
        "mine.py:build": (WorkloadFile(Path("/x/mine.py"), "aa"), WorkloadFile(Path("/x/mine.py"), "bb"))
    }


def test_the_code_of_a_script_is_its_own_file_and_its_local_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, scripts = tmp_path / "work", tmp_path / "scripts"
    names = ("scripts/train.py", "scripts/part.py", "work/pkg/model.py", "elsewhere/other.py")
    names += ("work/.venv/lib/python3/site-packages/lib.py", "work/run/launch/sitecustomize.py")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    modules = {Path(name).stem: ModuleType(Path(name).stem) for name in names} | {"builtin": ModuleType("b")}
    for name in names:
        modules[Path(name).stem].__file__ = str(tmp_path / name)
    modules["__main__"] = modules.pop("train")
    modules["__main__"].__file__ = "../scripts/train.py"
    modules["json"], modules["ours"] = json, provenance
    monkeypatch.chdir(work)
    paths = (scripts / "train.py", scripts / "part.py", work / "pkg/model.py")
    assert local_files(modules) == {str(path): sha256_of(path) for path in paths}


def test_a_script_that_runs_where_its_folder_was_removed_has_no_known_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert local_files({}) == {}


def configure(directory: Path, section: str, *lines: str) -> None:
    with (directory / ".git" / "config").open("a") as stream:
        stream.write("\n".join((f"[{section}]", *lines, "")))


def hostile_checkout(directory: Path) -> Path:
    """A checkout whose configuration names programs for everything that git may run; the file they leave."""
    mark, program = directory / "was-run", directory / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    git(directory, "init", "-q")
    (directory / "file").write_text("1")
    (directory / ".gitattributes").write_text("file filter=evil diff=evil export-subst\n")
    git(directory, "add", "file", ".gitattributes")
    git(directory, "commit", "-q", "-m", "first")
    sections = {
        "core": ("fsmonitor", "pager", "sshCommand"),
        "diff": ("external",),
        "gpg": ("program",),
        'filter "evil"': ("clean", "smudge"),
        'diff "evil"': ("textconv",),
    }
    for section, names in sections.items():
        configure(directory, section, *(f"{name} = {program}" for name in names))
    configure(directory, 'filter "evil"', "required = true")
    hook = directory / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.hardlink_to(program)
    (directory / "file").write_text("2")
    return mark


def test_nothing_that_a_checkout_names_is_run(tmp_path: Path) -> None:
    mark = hostile_checkout(tmp_path)
    subprocess.run(["git", "status"], cwd=tmp_path, capture_output=True, check=False)
    assert mark.exists()  # git itself runs it
    mark.unlink()

    state = git_state(tmp_path)

    assert state is not None
    assert state["changed"] is True
    assert not mark.exists()


def test_restoring_a_commit_runs_no_filter_of_the_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    mark = hostile_checkout(checkout)
    commit = git(checkout, "rev-parse", "HEAD")

    assert has_commit(checkout, commit)
    assert git_archive(checkout, commit, tmp_path / "code.tar")

    with tarfile.open(tmp_path / "code.tar") as files:
        assert files.getnames() == [".gitattributes", "file"]
    for name in ("--output=x", "HEAD", "", "0123456; touch x"):  # what is not a commit never reaches git
        assert not has_commit(checkout, name)
        assert not git_archive(checkout, name, tmp_path / "none.tar")
    assert not mark.exists()


def test_a_filter_that_no_switch_can_name_leaves_cleanliness_unknown(tmp_path: Path) -> None:
    mark = hostile_checkout(tmp_path)
    configure(tmp_path, 'filter "e=v"', f"clean = {tmp_path / 'program'}")

    state = git_state(tmp_path)

    assert state is not None
    assert state["changed"] is None
    assert not mark.exists()
