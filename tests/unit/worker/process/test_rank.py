"""How a rank describes what went wrong."""

import os

from scalescope.errors import BadInput
from scalescope.worker.process.rank import describe_error


def test_running_out_of_memory_is_marked() -> None:
    assert describe_error(MemoryError())["out_of_memory"]
    assert not describe_error(RuntimeError("CUDA error: an illegal memory access"))["out_of_memory"]


def test_a_message_is_one_line_that_can_be_printed_and_stored() -> None:
    path = os.fsdecode(b"/data/\xff.bin")
    assert describe_error(OSError(f"no {path}\x1b[31m\x00\nmore"))["message"] == (
        "OSError: no /data/\\udcff.bin\\x1b[31m\\x00"
    )
    assert describe_error(BadInput(""))["message"] == ""


def test_a_message_that_goes_on_in_the_next_line_is_not_cut_there() -> None:
    error = RuntimeError(
        "parameters were not used, \nwhich you can allow by \npassing an argument.\nSee more"
    )
    assert describe_error(error)["message"] == (
        "RuntimeError: parameters were not used, which you can allow by passing an argument."
    )
