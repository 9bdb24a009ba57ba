"""The worked examples of CONTRIBUTING.md: real files, in folders as those of `src/scalescope`."""

from pathlib import Path

ROOT = Path(__file__).parent / "examples"


def example_files() -> dict[str, Path]:
    """Every example by its path below `src/scalescope`."""
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}


def example_folders() -> dict[str, Path]:
    """The folders of the examples, by the package that each adds to."""
    folders = {path.parent for path in example_files().values()}
    return {".".join(("scalescope", *folder.relative_to(ROOT).parts)): folder for folder in sorted(folders)}
