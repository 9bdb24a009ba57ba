"""Other load: from which figures on it counts, and that what is not known is never held against a launch."""

import json

import pytest

from scalescope.results.other_load import OtherLoad
from scalescope.results.result import undisturbed
from tests.builders.lines import make_result


def load(**facts: object) -> OtherLoad:
    return OtherLoad(**{"cores": 2, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "present", "disturbs"),
    [
        ({"other_cores": 0.29, "rank_waits": (0.5,)}, False, False),
        ({"other_cores": 0.3, "rank_waits": (0.5, 0.0)}, True, True),
        ({"other_cores": 0.3, "rank_waits": (0.04, 0.0)}, True, False),  # they ran where the ranks did not
        ({"other_cores": 0.3}, True, True),  # waiting is not shown
        ({"other_cores": 1.0, "cores": 64}, False, False),
        ({"other_cores": 1.3, "cores": 64, "rank_waits": (0.2,)}, True, True),
        ({"stolen_cores": 0.09}, False, False),
        ({"stolen_cores": 0.1}, True, True),
        ({"rank_waits": (0.9,)}, False, False),  # the ranks' own threads may be too many
        ({"pressure": 1.0, "load_average": 99.0}, False, False),
        ({"gpu_processes": 0}, False, False),
        ({"gpu_processes": 1}, True, True),
        ({"gpu_slowed": 0.05}, False, False),
        ({"gpu_slowed": 0.2}, False, True),
        ({"gpu_clock_share": 0.85}, False, False),
        ({"gpu_clock_share": 0.7}, False, True),
        ({}, False, False),
    ],
)
def test_what_counts_as_load_and_what_disturbs(
    facts: dict[str, object], present: bool, disturbs: bool
) -> None:
    assert (load(**facts).is_present, load(**facts).disturbs) == (present, disturbs)


def test_it_is_stored_without_what_is_unknown_and_read_back_the_same() -> None:
    stored = load(other_cores=1.1, rank_waits=(0.5, 0.25), pressure=0.8)
    text = json.dumps(stored.to_json())
    assert json.loads(text).keys() == {"cores", "other_cores", "rank_waits", "pressure"}
    assert OtherLoad.from_json(json.loads(text)) == stored


@pytest.mark.parametrize("raw", [None, [], "busy", {}, {"something": "new"}])
def test_where_nothing_was_stored_nothing_is_known(raw: object) -> None:
    assert OtherLoad.from_json(raw) == OtherLoad()


def test_only_undisturbed_launches_count_unless_a_trial_has_no_others() -> None:
    busy = {"load": {"cores": 2, "other_cores": 1.5, "rank_waits": [0.5]}}
    results = [
        make_result(trial_id="a", launch=0, telemetry=busy),
        make_result(trial_id="a", launch=1),
        make_result(trial_id="b", launch=0, telemetry=busy),
    ]
    assert [(result.trial_id, result.launch) for result in undisturbed(results)] == [("a", 1), ("b", 0)]


def test_a_failed_launch_is_not_called_disturbed() -> None:
    busy = {"load": {"cores": 2, "other_cores": 1.5}}
    assert make_result(telemetry=busy).is_disturbed
    assert not make_result(status="failed", telemetry=busy).is_disturbed
