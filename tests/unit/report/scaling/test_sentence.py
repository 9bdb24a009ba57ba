"""The sentence about a whole table of scaling."""

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.launch.fake import CostModel
from scalescope.report.scaling.sections import verdict
from tests.builders.known_runs import make_run, make_trials


def sentence(batches: list[int], model: CostModel, *, launches: int) -> str:
    run = make_run(make_trials(world_size=[1, 2], batch_size=batches), launches, model)
    return verdict(scaling_rows(configurations(run.results)))


def test_both_thresholds_at_one_batch_are_one_clause() -> None:
    fast = CostModel(fixed_s=0.01, per_sample_s=0.001)
    assert sentence([16, 32], fast, launches=3).endswith("; 80 % and 90 % efficiency from batch 16 on.")
    once = sentence([16, 32], fast, launches=1)
    assert once.endswith("; 80 % and 90 % efficiency from batch 16 on (not certain).")


def test_thresholds_at_two_batches_are_two_clauses() -> None:
    slow = CostModel(fixed_s=0.0, per_sample_s=0.001, exposed_comm_s={2: 0.004})
    text = sentence([16, 64], slow, launches=1)
    assert text.endswith(
        "; 80 % efficiency from batch 16 on (not certain), 90 % from batch 64 on (not certain)."
    )
