"""Advice is a command that can be run as it stands."""

import pytest

from scalescope.diagnose.advice import as_flag


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("bucket_cap_mb", 5.0, "--bucket-cap-mb 5.0"),
        ("bucket_cap_mb", None, "--bucket-cap-mb null"),
        ("static_graph", True, "--static-graph"),
        ("static_graph", False, "--no-static-graph"),
        ("workload", "my model.py:build", "--workload 'my model.py:build'"),
    ],
)
def test_a_setting_is_written_as_the_command_line_takes_it(name: str, value: object, flag: str) -> None:
    assert as_flag(name, value) == flag
