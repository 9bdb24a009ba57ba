"""One file system for the script, the user's files below it unchanged: Python's functions against it."""

# ruff: noqa: E501

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalescope.private_view import REDIRECT, View
from scalescope.worker.hooks.redirection import rename_folders_by_copying

# Functions that were redirected cannot be taken back: scripts run in a process of their own, one after the other.
_IN_A_PROCESS = """
import contextlib, io, json, os, sys
view, scripts = json.load(sys.stdin)
class Refused(BaseException):
    pass
def refuse(reason):
    raise Refused("refused: " + reason)
if view is not None:
    from scalescope.private_view import View
    from scalescope.worker.hooks.redirection import Redirection
    Redirection(View(**json.loads(view)), refuse).install()
said = []
for folder, code in scripts:
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            exec(compile(code, "script", "exec"), {"os": os})
        except BaseException as error:
            print(error if isinstance(error, Refused) else repr(error))
    said.append(output.getvalue().strip())
print(json.dumps(said))
"""


class Scripts:
    """Runs scripts with redirected functions, each in a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.path, self.view_folder = path, path / "view"
        self.view_folder.mkdir()
        self.view = View(kind=REDIRECT, folder=str(self.view_folder), covered=[], writable=[])

    def folder(self, name: str) -> Path:
        folder = self.path / name
        if not folder.exists():
            (folder / "sub").mkdir(parents=True)
            (folder / "a.txt").write_text("old")
            (folder / "sub" / "b.txt").write_text("b")
            (folder / "link").symlink_to("sub")
        return folder

    def run(self, *codes: str, folder: str | None = None, redirected: bool = True) -> list[str]:
        """What each script printed; no file of the user has changed."""
        folders = [self.folder(folder or f"user{redirected}{number}") for number in range(len(codes))]
        before = [_state(folder) for folder in folders]
        view = self.view.to_text() if redirected else None
        request = json.dumps([view, list(zip(map(str, folders), codes, strict=True))])
        words = [sys.executable, "-c", _IN_A_PROCESS]
        done = subprocess.run(words, input=request, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if redirected:
            assert [_state(folder) for folder in folders] == before
        said: list[str] = json.loads(done.stdout)
        return said


def _state(folder: Path) -> list[tuple[str, int, bytes]]:
    return [
        (str(path), path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    ]


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


_SEEN = {
    "open('a.txt', 'w').write('new'); print(open('a.txt').read())": "new",
    "open('a.txt', 'a').write('+'); print(open('a.txt').read())": "old+",
    "f = open('a.txt', 'r+'); f.write('X'); f.close(); print(open('a.txt').read())": "Xld",
    "os.remove('a.txt'); print(sorted(os.listdir()))": "['link', 'sub']",
    "os.remove('a.txt'); print(os.path.exists('a.txt'))": "False",
    "os.remove('a.txt'); open('a.txt', 'x').write('n'); print(open('a.txt').read())": "n",
    "open('t', 'w').write('n'); os.replace('t', 'a.txt'); print(os.listdir(), open('a.txt').read())": "['a.txt', 'link', 'sub'] n",
    "os.rename('sub', 'other'); print(os.listdir('other'), os.path.isdir('sub'))": "['b.txt'] False",
    "os.rename('sub', 'x'); os.mkdir('sub'); print(os.listdir('sub'), os.listdir('link'))": "[] []",
    "import shutil; shutil.rmtree('sub'); print(os.path.exists('link'), os.path.islink('link'))": "False True",
    "import shutil; shutil.rmtree('sub'); os.makedirs('sub/deep'); print(os.listdir('sub'))": "['deep']",
    "open('link/new', 'w').write('n'); print(os.listdir('sub'))": "['b.txt', 'new']",
    "os.symlink('a.txt', 's'); open('s', 'w').write('n'); print(open('a.txt').read())": "n",
    "import pathlib as p; p.Path('z/y').mkdir(parents=True); print([str(x) for x in p.Path('.').rglob('y')])": "['z/y']",
    "import pathlib as p; p.Path('a.txt').unlink(); print(sorted(x.name for x in p.Path('.').iterdir()))": "['link', 'sub']",
    "import glob; open('sub/c.txt', 'w').close(); print(sorted(glob.glob('**/*.txt', recursive=True)))": "['a.txt', 'link/b.txt', 'link/c.txt', 'sub/b.txt', 'sub/c.txt']",
    "import shutil; shutil.copytree('sub', 'copy'); shutil.move('copy', 'moved'); print(os.listdir('moved'))": "['b.txt']",
    "os.truncate('a.txt', 1); print(os.path.getsize('a.txt'), os.stat('a.txt').st_size)": "1 1",
    "os.link('a.txt', 'hard'); open('hard', 'w').write('n'); print(open('a.txt').read())": "old",
    "fd = os.open('n', os.O_CREAT | os.O_WRONLY); os.write(fd, b'1'); os.close(fd); print(os.listdir())": "['a.txt', 'link', 'n', 'sub']",
    "print([e.name for e in os.scandir() if e.is_dir(follow_symlinks=False)])": "['sub']",
    "open('q', 'w').close(); print(sorted((e.name, e.is_dir(), e.is_symlink()) for e in os.scandir()))": "[('a.txt', False, False), ('link', True, True), ('q', False, False), ('sub', True, False)]",
    "import tempfile; d = tempfile.mkdtemp(dir='.'); print(os.path.isdir(d))": "True",
    "import io; io.open('a.txt', 'w').write('n'); print(open(b'a.txt').read())": "n",
    "os.chmod('a.txt', 0o600); print(oct(os.stat('a.txt').st_mode & 0o777))": "0o600",
    "os.utime('a.txt', (1, 1)); print(os.path.getmtime('a.txt'))": "1.0",
    "print(os.path.realpath('link/b.txt').endswith('/sub/b.txt'))": "True",
}  # fmt: skip


def test_the_script_sees_what_it_did_and_the_user_keeps_what_was_there(scripts: Scripts) -> None:
    assert dict(zip(_SEEN, scripts.run(*_SEEN), strict=True)) == _SEEN


_REFUSED_BY_THE_SYSTEM = [
    "os.rmdir('sub')",
    "os.mkdir('sub')",
    "open('a.txt', 'x')",
    "os.remove('none')",
    "os.remove('sub')",
    "open('none/deep', 'w')",
    "os.rename('none', 'x')",
    "os.replace('a.txt', 'sub')",
    "os.symlink('x', 'a.txt')",
    "os.listdir('none')",
    "os.rmdir('a.txt')",
]


def test_what_the_system_refuses_is_refused_alike(scripts: Scripts) -> None:
    caught = [
        f"try:\n    {code}\nexcept OSError as error:\n    print(type(error).__name__)"
        for code in _REFUSED_BY_THE_SYSTEM
    ]
    plain = scripts.run(*caught, redirected=False)
    assert all(plain) and scripts.run(*caught) == plain
    touched = [f"open('touched', 'w').close()\n{code}" for code in caught]  # the same with some changes
    assert scripts.run(*touched) == plain


_STARTED = {
    "os.system('cp a.txt b.txt')": True,
    "os.system('echo x > b.txt')": True,
    "os.system('echo x > /dev/null')": False,
    "subprocess.run(['rm', 'a.txt'])": True,
    "subprocess.run('mkdir x', shell=True)": True,
    "subprocess.run(['sh', '-c', 'touch x'])": True,
    "subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True)": False,
    "subprocess.run(['uname'], capture_output=True)": False,
}


def test_programs_that_change_files_are_refused(scripts: Scripts) -> None:
    said = scripts.run(*(f"import subprocess\n{call}" for call in _STARTED))
    refused = [text.startswith("refused: the script starts") for text in said]
    assert dict(zip(_STARTED, refused, strict=True)) == _STARTED


def test_another_process_sees_the_same_files(scripts: Scripts) -> None:
    scripts.run("open('a.txt', 'w').write('first'); os.rename('sub', 'renamed')", folder="user")
    seen = scripts.run("print(open('a.txt').read(), os.listdir('renamed'))", folder="user")
    assert seen == ["first ['b.txt']"]


def test_what_is_writable_is_written(scripts: Scripts, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    scripts.view = View(kind=REDIRECT, folder=str(scripts.view_folder), covered=[], writable=[str(cache)])
    scripts.run(
        f"open({str(cache / 'kept')!r}, 'w').write('k'); os.rename('a.txt', {str(cache / 'moved')!r})"
    )
    assert ((cache / "kept").read_text(), (cache / "moved").read_text()) == ("k", "old")


@pytest.fixture
def own_renames() -> Iterator[None]:
    before = os.rename, os.replace
    yield
    os.rename, os.replace = before


@pytest.mark.usefixtures("own_renames")
def test_a_folder_that_an_overlay_cannot_rename_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = os.rename

    def overlay(source: str | Path, target: str | Path) -> None:
        if (Path(source) / "lower").exists() and "scalescope" not in str(source):
            raise OSError(18, "Invalid cross-device link")
        system(source, target)

    monkeypatch.setattr(os, "rename", overlay)
    rename_folders_by_copying()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "lower").write_text("kept")
    os.rename(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "lower").read_text() == "kept"
