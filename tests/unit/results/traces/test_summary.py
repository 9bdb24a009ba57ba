"""The summary of a rank's trace: its parts add up to the step, and it survives the record."""

import pytest

from scalescope.results.traces.rank_trace import DATA, HOST, QUEUED, Collective, TracedRank, TracedStep
from scalescope.results.traces.summary import TraceSummary, summary_of


def _step(*collectives: tuple[str, float, float], compute_end: float = 5.0) -> TracedStep:
    return TracedStep(
        time_s=10.0,
        compute_s=compute_end,
        communication_s=4.0,
        overlap_s=1.0,
        copy_s=0.5,
        idle_s={HOST: 1.0, DATA: 0.25, QUEUED: 0.25},
        collectives=tuple(
            Collective(name=name, size_bytes=None, start_s=start, time_s=time, exposed_s=0.0)
            for name, start, time in collectives
        ),
        backward_compute=None,
        communication=None,
        spans={"compute": [(0.0, compute_end)]},
    )


def _traced(*steps: TracedStep) -> TracedRank:
    return TracedRank(on_gpu=False, steps=steps, kernels=())


def test_the_parts_of_a_step_add_up_to_it() -> None:
    parts = summary_of(_traced(_step())).parts
    whole = sum(values[0] for name, values in parts.items() if name != "step_s")
    assert whole == pytest.approx(parts["step_s"][0])


def test_exchanges_at_the_same_time_are_exposed_once() -> None:
    summary = summary_of(_traced(_step(("all_reduce", 4.0, 3.0), ("all_reduce", 4.5, 4.0))))
    assert summary.collective_s == [[3.0, 4.0]]
    assert summary.collective_exposed_s == [[pytest.approx(2.0), pytest.approx(1.5)]]


def test_a_broadcast_which_its_root_leaves_early_is_not_compared_between_ranks() -> None:
    summary = summary_of(_traced(_step(("broadcast", 5.0, 1.0), ("all_reduce", 6.0, 2.0))))
    assert summary.collective_s == [[2.0]]


def test_a_record_gives_the_summary_back_also_where_steps_have_different_exchanges() -> None:
    both = (("all_reduce", 6.0, 2.0), ("all_gather", 8.0, 1.0))
    summary = summary_of(_traced(_step(*both), _step(("all_reduce", 6.5, 2.0)), _step()))
    again = TraceSummary.from_record(summary.samples())
    assert again is not None
    assert again.samples() == summary.samples()
    assert again.collective_s == [[2.0, 1.0], [2.0], []]


def test_a_record_that_does_not_fit_together_has_no_summary() -> None:
    summary = summary_of(_traced(_step(("all_reduce", 6.0, 2.0))))
    samples = summary.samples()
    assert TraceSummary.from_record({**samples, "trace/compute_s": []}) is None
    assert TraceSummary.from_record({}) is None
    for counts in ([], [2.0], [-1.0]):
        without_exchanges = TraceSummary.from_record({**samples, "trace/collectives": counts})
        assert without_exchanges is not None and without_exchanges.collective_s is None
