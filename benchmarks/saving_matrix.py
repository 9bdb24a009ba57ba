"""Ways of saving × verbs × systems: whether the user's folder stays as it is, and the script sees its files.

`python benchmarks/saving_matrix.py [--verbs train,scale,tune] [--ways …] [--systems overlay,…]` prints a row
for each run: every file of the folder, its hash, times and mode, before and after, and how the run ended. The
script itself (tests/commands/scripts/saving.py) fails where it does not see what it wrote.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "commands" / "scripts" / "saving.py"
RESTRICTED = ROOT / "tests" / "restricted_system.py"
SYSTEMS = {  # what the system lacks
    "overlay": None,
    "user namespaces": "privileges",
    "redirection": "namespaces",
    "nothing": "landlock",
}
VERBS = {
    "train": ("train", "--window", "0.2s", "--no-breakdown"),
    "scale": ("scale", "--world-size", "1,2", "--repeats", "1", "--window", "0.2s", "--no-waterfall"),
    "tune": ("tune", "--budget", "40s", "--window", "0.2s", "--world-size", "1"),
}


def state_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything about every file: type, mode, size, time of change, and what is in it."""
    state = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        name = str(path.relative_to(folder))
        state[name] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino, content)
    return state


def command_of(way: str, verb: str) -> list[str]:
    if way == "lightning":
        return [sys.executable, str(SCRIPT), way, "{world_size}"]
    if verb == "scale":
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node={world_size}",
            str(SCRIPT),
            way,
        ]
    return [sys.executable, str(SCRIPT), way]


def run(way: str, verb: str, system: str) -> tuple[str, str]:
    """How a run ended, and whether anything changed."""
    # Not in /tmp alone: a home folder is covered in another way.
    with tempfile.TemporaryDirectory(dir=os.environ.get("SAVING_HOME")) as top:
        folder, elsewhere, output = (Path(top, name) for name in ("project", "scratch", "run"))
        folder.mkdir()
        elsewhere.mkdir()
        setup = "import sys, pathlib, saving; saving.user_files(pathlib.Path(sys.argv[1]))"
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent)}
        subprocess.run([sys.executable, "-c", setup, str(folder)], env=environment, check=True)
        before = state_of(folder), state_of(elsewhere)
        lacks = SYSTEMS[system]
        words = [] if lacks is None else [sys.executable, str(RESTRICTED), lacks]
        words += [sys.executable, "-m", "scalescope", *VERBS[verb], "--output-dir", str(output)]
        words += ["--device", "cpu", "--no-repeat-disturbed", "--", *command_of(way, verb)]
        environment = {**os.environ, "SAVING_ELSEWHERE": str(elsewhere), "COLUMNS": "200"}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        is_same = (state_of(folder), state_of(elsewhere)) == before
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        ended = (
            "measured"
            if done.returncode == 0
            else f"code {done.returncode}: {lines[-1][:150] if lines else ''}"
        )
        return ended, "unchanged" if is_same else "CHANGED"


def main() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    import saving

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join((*saving.WAYS, "hugging_face", "lightning")))
    parser.add_argument("--verbs", default="train,scale,tune")
    parser.add_argument("--systems", default="overlay,user namespaces,redirection,nothing")
    options = parser.parse_args()
    print("| system | verb | way | ended | user's files | s |\n|---|---|---|---|---|---|")
    for system in options.systems.split(","):
        for verb in options.verbs.split(","):
            for way in options.ways.split(","):
                began = time.monotonic()
                ended, files = run(way, verb, system)
                print(
                    f"| {system} | {verb} | {way} | {ended} | {files} | {time.monotonic() - began:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
