"""Writes constraints-hashed.txt: the pinned core packages with the hashes of their wheels.

    python tools/hashed_constraints.py

pip downloads the wheels of every supported Python and machine to a temporary folder, so it needs an index.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename
from pinned import ROOT, core_names, pinned_versions

FILE = ROOT / "constraints-hashed.txt"
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_MACHINES = (
    ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    ("macosx_11_0_arm64", "macosx_14_0_arm64"),
    ("macosx_10_12_x86_64", "macosx_10_13_x86_64"),
)
_HEADER = """\
# What `pip install scalescope` needs, without extras: every wheel for Linux and macOS, CPython 3.11 to 3.14.
# Written by `make pins` from constraints.txt. A file that was changed on its way is refused:
#   pip install --require-hashes -r constraints-hashed.txt && pip install --no-deps scalescope
"""


def main() -> None:
    """Download, hash, write."""
    versions = pinned_versions()
    hashes = _hashes({canonicalize_name(name): f"{name}=={versions[name]}" for name in core_names()})
    blocks = [
        " \\\n".join((pin, *(f"    --hash=sha256:{digest}" for digest in sorted(digests))))
        for pin, digests in hashes.items()
    ]
    FILE.write_text(_HEADER + "\n".join(blocks) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {len(blocks)} packages")


def _hashes(pins: dict[NormalizedName, str]) -> dict[str, set[str]]:
    """By pin, of every wheel that some supported Python on some machine would choose."""
    hashes: dict[str, set[str]] = {pin: set() for pin in pins.values()}
    with tempfile.TemporaryDirectory() as folder:
        for python in _PYTHONS:
            for platforms in _MACHINES:
                _download(list(pins.values()), python, platforms, folder)
        for path in Path(folder).glob("*.whl"):
            name = parse_wheel_filename(path.name)[0]
            hashes[pins[name]].add(hashlib.sha256(path.read_bytes()).hexdigest())
    return hashes


def _download(pins: list[str], python: str, platforms: tuple[str, ...], folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [f"--python-version={python}", f"--dest={folder}", "--disable-pip-version-check"]
    command += [f"--platform={platform}" for platform in platforms]
    subprocess.run([*command, *pins], check=True)


if __name__ == "__main__":
    main()
