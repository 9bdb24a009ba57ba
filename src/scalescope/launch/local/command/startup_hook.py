"""Becomes `sitecustomize.py` on the PYTHONPATH of a training command: loads us into its processes.

It runs at the start of every Python that the command starts, also of old ones and of those without our
packages, so it imports little and never lets an error of ours reach the command.
"""

# Loading pathlib would slow down the start of every Python.
# ruff: noqa: PTH100, PTH118, PTH120, PTH123

import os
import sys

_JOB_VARIABLE = "SCALESCOPE_ATTACH"
_OLDEST_PYTHON = (3, 11)


def run():
    # type: () -> None
    """Run the sitecustomize that this one hides, and then our own part; an error of the former goes on."""
    try:
        _run_hidden()
    finally:
        job_file = os.environ.get(_JOB_VARIABLE)
        if job_file:
            _load(job_file)


def _run_hidden():
    # type: () -> None
    """What `import sitecustomize` would have run without us."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _load(job_file):
    # type: (str) -> None
    try:
        if sys.version_info < _OLDEST_PYTHON:
            version = ".".join(map(str, sys.version_info[:2]))
            raise RuntimeError("Python " + version + " is too old; scalescope needs 3.11 or later")
        import importlib

        _load_package(job_file)
        importlib.import_module("scalescope.worker.hooks.startup").begin()
    except (Exception, SystemExit) as error:
        _report(job_file, error)


def _load_package(job_file):
    # type: (str) -> None
    """Import the package that launched us, of the same version and without its folder on the path."""
    import importlib.util
    import json

    with open(job_file, encoding="utf-8") as file:
        folder = os.path.join(json.load(file)["package_parent"], "scalescope")
    spec = importlib.util.spec_from_file_location(
        "scalescope", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if "scalescope" not in sys.modules and spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["scalescope"] = module
        spec.loader.exec_module(module)


def _report(job_file, error):
    # type: (str, BaseException) -> None
    """Leave the error for the launcher, where files can still be written."""
    import json

    text = str(error) if isinstance(error, RuntimeError) else type(error).__name__ + ": " + str(error)
    report = {"pid": os.getpid(), "error": " ".join(text.split())}
    process = os.environ.get("SLURMD_NODENAME", "") + str(os.getpid()) + ".json"  # nodes may use the same ids
    name = os.path.join(os.path.dirname(job_file), "processes", process)
    try:
        with open(name, "w") as file:
            json.dump(report, file)
    except OSError:
        pass


if __name__ == "sitecustomize":
    run()
