"""Whether two runs measured the same file: workloads are matched by name, and a file may have changed."""

from pathlib import PurePath

from scalescope.analysis.comparison.environments import Difference
from scalescope.catalog.workloads.custom import source_and_function
from scalescope.results.provenance import workload_files
from scalescope.results.run import Run

_SHOWN = 12  # digits


def file_differences(before: Run, after: Run) -> tuple[Difference, ...]:
    """The files of workloads that both runs have and that are not the same; runs that do not say are left
    out."""
    left, right = _by_name(before), _by_name(after)
    return tuple(
        Difference(kind="code", name=name, before=_shown(left[name]), after=_shown(right[name]))
        for name in left
        if name in right and left[name] != right[name]
    )


def _by_name(run: Run) -> dict[str, list[str]]:
    """By the name of a file, or of a module, what launches recorded of it."""
    digests: dict[str, set[str]] = {}
    for workload, files in workload_files(run.results).items():
        source, function = source_and_function(workload)
        for file in files:  # those of a training command have names of their own
            name = PurePath(source).name if function != workload else file.path.name
            digests.setdefault(name, set()).add(file.sha256)
    return {name: sorted(values) for name, values in digests.items()}


def _shown(digests: list[str]) -> str:
    return f"SHA-256 {' and '.join(digest[:_SHOWN] for digest in digests)}"
