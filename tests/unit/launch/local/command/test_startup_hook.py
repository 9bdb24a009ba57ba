"""The hook in processes of a command: it loads our code, runs what it hides, and never breaks the command."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.launch.local.command.launch import _HOOK as HOOK

_STARTUP = "import os\nfrom pathlib import Path\nDIRECTORY = Path(os.environ['SCALESCOPE_ATTACH']).parent\n"
_BEGIN = _STARTUP + "def begin():\n    (DIRECTORY / 'begun').write_text(__file__)\n"


class Hooked:
    """A folder as a launch makes it, with a package of ours that holds nothing but its beginning."""

    def __init__(self, path: Path, startup: str) -> None:
        self.directory = path / "launch"
        self.package_parent = path / "ours"
        (self.directory / "python").mkdir(parents=True)
        (self.directory / "processes").mkdir()
        (self.directory / "python" / "sitecustomize.py").write_text(HOOK.read_text())
        job = {"package_parent": str(self.package_parent)}
        (self.directory / "job.json").write_text(json.dumps(job))
        attach = self.package_parent / "scalescope" / "worker" / "hooks"
        attach.mkdir(parents=True)
        for folder in (attach, attach.parent, attach.parent.parent):
            (folder / "__init__.py").touch()
        (attach / "startup.py").write_text(startup)

    def python(self, code: str, *folders: Path) -> "subprocess.CompletedProcess[str]":
        path = os.pathsep.join(map(str, (self.directory / "python", *folders)))
        variables = {"PYTHONPATH": path, "SCALESCOPE_ATTACH": str(self.directory / "job.json")}
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )

    @property
    def has_begun(self) -> bool:
        return (self.directory / "begun").exists()

    def reports(self) -> list[dict[str, object]]:
        return [json.loads(file.read_text()) for file in (self.directory / "processes").iterdir()]


@pytest.fixture
def hooked(tmp_path: Path) -> Hooked:
    return Hooked(tmp_path, _BEGIN)


def test_our_code_is_loaded_from_the_launcher_and_its_folder_is_not_on_the_path(hooked: Hooked) -> None:
    run = hooked.python("import sys; print('\\n'.join(sys.path))")
    begun = Path((hooked.directory / "begun").read_text())
    assert begun == hooked.package_parent / "scalescope" / "worker" / "hooks" / "startup.py"
    assert str(hooked.package_parent) not in run.stdout.splitlines()
    assert str(hooked.directory / "python") in run.stdout.splitlines()  # for what the process starts
    assert run.stderr == "" and hooked.reports() == []


def test_another_sitecustomize_runs_as_without_us(hooked: Hooked, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("print('mine', __name__)\nVALUE = 7\n")
    run = hooked.python("import sitecustomize; print(sitecustomize.VALUE)", tmp_path / "mine")
    assert run.stdout.splitlines() == ["mine sitecustomize", "7"]
    assert hooked.has_begun


def test_an_error_in_another_sitecustomize_is_reported_by_python_and_ours_is_loaded(
    hooked: Hooked, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    run = hooked.python("print('trained')", tmp_path)
    assert run.stdout == "trained\n"
    assert "ValueError: theirs" in run.stderr
    assert hooked.has_begun and hooked.reports() == []


@pytest.mark.parametrize(
    ("startup", "error"),
    [
        ("raise ValueError('of\\nours')\n", "ValueError: of ours"),
        ("def begin():\n    raise SystemExit(1)\n", "SystemExit: 1"),
    ],
)
def test_an_error_of_ours_is_left_for_the_launcher_and_the_command_runs_on(
    tmp_path: Path, startup: str, error: str
) -> None:
    hooked = Hooked(tmp_path, startup)
    run = hooked.python("import os; print(os.getpid())")
    assert hooked.reports() == [{"pid": int(run.stdout), "error": error}]
    assert run.stderr == ""


def test_old_interpreters_can_read_the_hook() -> None:
    assert ast.parse(HOOK.read_text(), feature_version=(3, 6)).body


def test_an_old_python_only_says_so(hooked: Hooked) -> None:
    (hooked.directory / "begun").unlink(missing_ok=True)
    job = hooked.directory / "job.json"
    hidden = job.rename(hooked.directory / "hidden.json")  # so that the first of two loads does nothing
    run = hooked.python(
        "import sys, os; os.rename(os.environ['SCALESCOPE_ATTACH'].replace('job', 'hidden'), "
        "os.environ['SCALESCOPE_ATTACH']); sys.version_info = (3, 9, 1); "
        "del sys.modules['sitecustomize']; import sitecustomize; print(sitecustomize.__name__)"
    )
    assert run.stdout == "sitecustomize\n" and not hidden.exists() and not hooked.has_begun
    (report,) = hooked.reports()
    assert report["error"] == "Python 3.9 is too old; scalescope needs 3.11 or later"


def test_a_launch_that_is_gone_does_no_harm(hooked: Hooked) -> None:
    (hooked.directory / "job.json").unlink()
    (hooked.directory / "processes").rmdir()
    run = hooked.python("print('trained')")
    assert (run.stdout, run.stderr) == ("trained\n", "")
    assert not hooked.has_begun
