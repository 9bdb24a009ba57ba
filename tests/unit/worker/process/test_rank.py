"""How a rank describes what went wrong."""

from scalescope.worker.process.rank import describe_error


def test_running_out_of_memory_is_marked() -> None:
    assert describe_error(MemoryError())["out_of_memory"]
    assert not describe_error(RuntimeError("CUDA error: an illegal memory access"))["out_of_memory"]
