"""`python -m scalescope.attach -- SCRIPT.py ARGUMENTS`: loads us where Python ignores PYTHONPATH.

For interpreters started with -E or -I, and for jobs that get no environment of ours (srun --export=NONE; then
with `--job {attach}`, which a command that scalescope launches replaces by the file of the job).
"""

import os
import runpy
import sys

_USAGE = "usage: python -m scalescope.attach [--job FILE] -- SCRIPT.py ARGUMENTS | -m MODULE ARGUMENTS"


def main(words: list[str]) -> None:
    """Begin to look on, then run the script or module as Python would."""
    if "--" not in words or not words[words.index("--") + 1 :]:
        sys.exit(_USAGE)
    options, command = words[: words.index("--")], words[words.index("--") + 1 :]
    if options[:1] not in ([], ["--job"]) or len(options) not in (0, 2):
        sys.exit(_USAGE)
    if os.path.basename(command[0]).startswith("python") and len(command) > 1:  # noqa: PTH119
        command = command[1:]
    from scalescope.worker.hooks import startup

    startup.begin(options[1] if options else None)
    if command[0] == "-m":
        if len(command) < 2:
            sys.exit(_USAGE)
        sys.argv = command[1:]
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))  # noqa: PTH100, PTH120
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
