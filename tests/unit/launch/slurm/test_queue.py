"""SLURM's commands and its short forms, written out: one line says what cannot be read."""

from pathlib import Path

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.launch.slurm import queue
from scalescope.launch.slurm.host_list import counts_of, hosts_of


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],gpu-a", ["n1", "n2", "n3", "n7", "gpu-a"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1,3].site", ["r1n1.site", "r1n3.site", "r2n1.site", "r2n3.site"]),
        ("a[1]b,c[2]", ["a1b", "c2"]),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert hosts_of(text) == hosts


@pytest.mark.parametrize("text", ["", ",", "n[", "n[]", "n[1-]", "n[3-1]", "n[a-b]", "n1 n2", "n[1]]", "n;1"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(BadInput):
        hosts_of(text)


def test_counts_for_each_node_and_lists_that_never_end() -> None:
    assert counts_of("4(x2),1") == [4, 4, 1]
    for text in ("four", "1(x999999999999)"):
        with pytest.raises(BadInput, match="not a list of counts such as"):
            counts_of(text)
    with pytest.raises(BadInput, match="more than 100,000 hosts"):
        hosts_of("n[1-999999999999]")


def program(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "sbatch"
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_message_that_is_not_utf_8_is_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "#!/bin/sh\nprintf 'sbatch: error: caf\\351\\n' >&2\nexit 1\n", monkeypatch)
    with pytest.raises(CannotRun, match=r"sbatch failed: caf\\xe9$"):
        queue.submit(tmp_path / "job.sh")


def test_a_number_among_other_bytes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "#!/bin/sh\nprintf 'caf\\351\\n17\\n'\n", monkeypatch)
    assert queue.submit(tmp_path / "job.sh") == "17"


def test_a_program_that_cannot_be_started_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "neither a script nor a program", monkeypatch)
    with pytest.raises(CannotRun, match=r"^sbatch cannot be started: "):
        queue.submit(tmp_path / "job.sh")
