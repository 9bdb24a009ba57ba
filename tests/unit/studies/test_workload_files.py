"""Whether two runs measured the same code: functions by the name of their file, commands file by file."""

from pathlib import Path

from scalescope.results.run import Run
from scalescope.studies.comparison.workload_files import file_differences
from tests.builders.results import make_result, make_trial


def run_of_command(**digests: str) -> Run:
    result = make_result(make_trial().replace(workload="command"), [[0.1]])
    rows = [{"path": f"/x/{name}.py", "sha256": digest} for name, digest in digests.items()]
    result.ranks[0].tables["script_files"] = rows
    return Run(path=Path("run"), environment={}, results=(result,), warnings=())


def test_the_files_of_a_script_are_compared_one_by_one() -> None:
    before, after = run_of_command(train="aa", model="bb", old="cc"), run_of_command(train="aa", model="dd")
    (difference,) = file_differences(before, after)
    assert (difference.kind, difference.name) == ("code", "model.py")
    assert (difference.before, difference.after) == ("SHA-256 bb", "SHA-256 dd")
