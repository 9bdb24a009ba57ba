"""Loaders of ranks as their records tell them."""

import pytest

from scalescope.analysis.training.loading import LoaderFacts, loading_of
from scalescope.results.result import RankRecord


def record(rank: int = 0, **counters: float | int | str | None) -> RankRecord:
    named = {name.replace("loader__", "loader/"): value for name, value in counters.items()}
    return RankRecord(rank=rank, host="here", device="cpu", placement="", counters=named)


def test_the_rank_that_spends_most_on_a_batch_counts() -> None:
    facts = loading_of([record(0, loader_s=0.3, copy_s=0.1), record(1, loader_s=0.1, copy_s=0.5)])
    assert facts is not None
    assert (facts.rank, facts.wait_s, facts.copy_s) == (1, 0.1, 0.5)


def test_all_that_a_rank_noted_is_read() -> None:
    facts = loading_of(
        [
            record(
                loader_s=0.1, copy_s=0.0, loader__first_batch_s=2.0, loader__prepare_s=0.4,
                loader__collate_s=0.1, loader__cpu_s=0.2, loader__workers=4, loader__prefetch_factor=2,
                loader__pinned=1, loader__persistent=0, loader__restarts=3, loader__cores=8,
                loader__batch_bytes=1000, loader__shm_bytes=9000, loader__shm_free_bytes=2500,
            )
        ]
    )  # fmt: skip
    assert facts is not None
    assert facts.fetch_s == pytest.approx(0.3)
    assert facts.computes == pytest.approx(0.5)
    assert (facts.workers, facts.pinned, facts.persistent, facts.restarts) == (4, True, False, 3)
    assert facts.batches_that_fit == 2
    assert not facts.is_iterable


def test_a_run_from_before_loaders_were_watched_leaves_the_rest_unknown() -> None:
    facts = loading_of([record(loader_s=0.1, copy_s=0.2)])
    assert facts == LoaderFacts(rank=0, wait_s=0.1, copy_s=0.2)
    assert (facts.fetch_s, facts.computes, facts.batches_that_fit) == (None, None, None)
    assert facts.workers_to_hide(0.1) is None
    assert not facts.is_iterable


def test_ready_batches_have_no_loader() -> None:
    facts = loading_of([record(loader_s=0.1, copy_s=0.2, loader__first_batch_s=0.1)])
    assert facts is not None and facts.is_iterable


def test_ranks_without_a_loader_have_no_facts() -> None:
    assert loading_of([record(parameters=3)]) is None
    assert loading_of([]) is None


@pytest.mark.parametrize(("batch_s", "workers"), [(0.1, 4), (0.15, 3), (1.0, 1), (0.0, None)])
def test_as_many_processes_hide_preparing_as_batches_are_used_meanwhile(
    batch_s: float, workers: int | None
) -> None:
    assert LoaderFacts(rank=0, prepare_s=0.4).workers_to_hide(batch_s) == workers
