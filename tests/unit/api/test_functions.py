"""Functions that ranks can import by file or module, and those that are refused with what to do."""

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scalescope.api.functions import reference_of
from scalescope.catalog.workloads.custom import check_reference
from scalescope.errors import BadInput

_SOURCE = """
import functools

def build():
    pass

def decorate(function):
    @functools.wraps(function)
    def wrapper():
        return function()
    return wrapper

@decorate
def decorated():
    pass

def outer():
    def inner():
        pass
    return inner

class Jobs:
    @staticmethod
    def fixed():
        pass

    def method(self):
        pass

    def __call__(self):
        pass

unnamed = lambda: None
part = functools.partial(build)
other_name = build
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


@pytest.fixture
def jobs(folder: Path) -> ModuleType:
    (folder / "api_jobs.py").write_text(_SOURCE)
    return importlib.import_module("api_jobs")


def test_text_is_a_reference_already() -> None:
    assert reference_of("mlp") == "mlp"
    assert reference_of("my_job.py:build") == "my_job.py:build"


def test_a_function_of_a_file_is_named_from_the_working_folder(
    jobs: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reference_of(jobs.build) == "api_jobs.py:build"
    assert reference_of(jobs.decorated) == "api_jobs.py:decorated"
    check_reference(reference_of(jobs.decorated))
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert reference_of(jobs.build) == f"{folder / 'api_jobs.py'}:build"
    check_reference(reference_of(jobs.build))


def test_a_function_of_a_package_is_named_by_its_module(folder: Path) -> None:
    (folder / "api_package").mkdir()
    (folder / "api_package" / "__init__.py").write_text("")
    (folder / "api_package" / "jobs.py").write_text("from . import __name__ as name\ndef build(): ...\n")
    module = importlib.import_module("api_package.jobs")
    assert reference_of(module.build) == "api_package.jobs:build"


@pytest.mark.parametrize(
    ("choose", "why"),
    [
        (lambda jobs: jobs.unnamed, "a lambda"),
        (lambda jobs: jobs.part, "a functools.partial"),
        (lambda jobs: jobs.outer(), "inner, which is defined inside another function,"),
        (lambda jobs: jobs.Jobs.fixed, "Jobs.fixed, which is defined inside a class,"),
        (lambda jobs: jobs.Jobs().method, "a method"),
        (lambda jobs: jobs.Jobs(), "an object of type Jobs"),
        (lambda jobs: 3, "an object of type int"),
    ],
)
def test_what_has_no_name_in_a_file_is_refused(
    jobs: ModuleType, choose: Callable[[ModuleType], Any], why: str
) -> None:
    with pytest.raises(BadInput, match=r"%%writefile my_job\.py, and pass 'my_job\.py:") as refused:
        reference_of(choose(jobs))
    assert str(refused.value).startswith(f"build=: {why} cannot be imported by the ranks; ")
    assert "\n" not in str(refused.value)


def test_a_name_that_means_something_else_now_is_refused(jobs: ModuleType) -> None:
    first = jobs.build
    jobs.build = jobs.outer
    with pytest.raises(BadInput, match=r"api_jobs\.build is not the function that was passed"):
        reference_of(first)


def _cell(file_name: str) -> Callable[[], None]:
    """A function as a notebook defines it: in __main__, with the name that its kernel gives to the cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def build(): ...", file_name, "exec"), names)
    function: Callable[[], None] = names["build"]
    return function


def test_a_function_of_a_cell_or_a_prompt_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ipykernel_7" / "1.py"  # as a debugger writes it
    file.parent.mkdir()
    file.write_text("def build(): ...")
    for name in ("<ipython-input-3-abc>", "/tmp/ipykernel_12/345.py", "<stdin>", str(file)):
        with pytest.raises(BadInput, match=r"build was defined interactively.*'my_job\.py:build'"):
            reference_of(_cell(name))
    with pytest.raises(BadInput, match=r"'my_job\.py:build'"):  # it has no name to suggest
        reference_of(functools.partial(print))


_MAIN = """
from scalescope.api.functions import reference_of
def build(): ...
print(reference_of(build))
"""


@pytest.mark.parametrize(
    ("command", "reference"),
    [
        (("api_main.py",), "api_main.py:build"),
        (("-m", "api_main"), "api_main.py:build"),
        (("-m", "api_package.main"), "api_package.main:build"),
    ],
)
def test_the_script_that_is_run_is_found_by_its_file(
    folder: Path, command: tuple[str, ...], reference: str
) -> None:
    (folder / "api_package").mkdir()
    (folder / "api_package" / "main.py").write_text(_MAIN)
    (folder / "api_main.py").write_text(_MAIN)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == reference
