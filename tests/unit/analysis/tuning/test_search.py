"""The search of `tune`: what it asks for next, and what it makes of the answers."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import pytest

from scalescope.analysis.tuning.ledger import ALONE, CONFIRM, LaunchesNeeded, NeededLaunch, SearchLedger
from scalescope.analysis.tuning.search import (
    BEFORE_COMBINING,
    SCREENING,
    Attempt,
    Combining,
    confirmed,
    explore,
    singles,
)
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result, Stage

from ..made_results import make_result, make_trial

TRIALS = [make_trial(seed=number) for number in range(6)]
BASELINE, *CANDIDATES = TRIALS
Key = tuple[str, int]
StepTime = Callable[[Trial, int], float]


def result(
    trial: Trial, number: int, step_s: float, stage: Stage = ALONE, launch: int | None = None
) -> Result:
    """A launch of that round of a stage."""
    # A little noise of its own for every launch, so that no variance is zero.
    steps = [[step_s * (1.0 + 0.001 * (number % 3))] * 10]
    made = make_result(trial, steps, launch=number if launch is None else launch)
    return dataclasses.replace(made, stage=stage, round=number)


def answer(needed: NeededLaunch, step_s: float) -> Result:
    return result(needed.trial, needed.round, step_s, needed.stage, needed.number)


def failure(trial: Trial, number: int, status: str = "failed", stage: Stage = ALONE) -> Result:
    failed = result(trial, number, 1.0, stage)
    return dataclasses.replace(failed, status=status, reason="lost", ranks=[])


def ledger(results: Sequence[Result], seed: int = 0) -> SearchLedger:
    return SearchLedger(results=results, seed=seed, baseline=BASELINE.trial_id)


def keys(launches: Iterable[NeededLaunch]) -> list[Key]:
    """(trial id, round) of every launch."""
    return [(needed.trial.trial_id, needed.round) for needed in launches]


def asked(results: Sequence[Result], trials: Sequence[Trial], count: int, stage: Stage = ALONE) -> list[Key]:
    with pytest.raises(LaunchesNeeded) as caught:
        ledger(results).measured(trials, count, stage)
    return keys(caught.value.launches)


def search(read: Callable[[SearchLedger], object], step_s: StepTime) -> tuple[object, list[Result]]:
    """Launch what is asked for until nothing is; returns the answer and all results."""
    results: list[Result] = []
    while True:
        try:
            return read(ledger(results)), results
        except LaunchesNeeded as needed:
            assert needed.launches
            results += [answer(launch, step_s(launch.trial, launch.round)) for launch in needed.launches]


def test_launches_are_asked_for_in_rounds_each_in_an_order_of_its_own() -> None:
    keys_asked = asked([], TRIALS, 8)
    rounds = [keys_asked[start : start + 6] for start in range(0, 48, 6)]
    for number, members in enumerate(rounds):
        assert {launch for _, launch in members} == {number}
        assert {trial for trial, _ in members} == {trial.trial_id for trial in TRIALS}
    assert len({tuple(trial for trial, _ in members) for members in rounds}) > 4
    assert keys_asked == asked([], TRIALS, 8)


def test_another_seed_is_another_order() -> None:
    with pytest.raises(LaunchesNeeded) as caught:
        ledger([], seed=1).measured(TRIALS, 8, ALONE)
    assert keys(caught.value.launches) != asked([], TRIALS, 8)
    assert sorted(keys(caught.value.launches)) == sorted(asked([], TRIALS, 8))


def test_only_what_is_missing_is_asked_for() -> None:
    there = [result(BASELINE, 0, 0.01), result(BASELINE, 2, 0.01), result(CANDIDATES[0], 1, 0.01)]
    keys_asked = asked(there, TRIALS[:2], 3)
    first, second = BASELINE.trial_id, CANDIDATES[0].trial_id
    assert sorted(keys_asked) == sorted([(first, 1), (second, 0), (second, 2)])
    assert [launch for _, launch in keys_asked] == [0, 1, 2]


def test_each_stage_measures_anew() -> None:
    there = [result(BASELINE, n, 0.01) for n in range(3)]
    second = Stage("add", 1)
    with pytest.raises(LaunchesNeeded) as caught:
        ledger(there).measured([BASELINE], 3, second)
    needed = caught.value.launches
    assert [(launch.stage, launch.round) for launch in needed] == [(second, n) for n in range(3)]
    assert [launch.number for launch in needed] == [3, 4, 5]  # no two launches of a trial share a number
    there += [answer(launch, 0.02) for launch in needed]
    (configuration,) = ledger(there).measured([BASELINE], 3, second).values()
    assert [round(step, 3) for step in configuration.mean_steps_s] == [0.02] * 3


def test_a_launch_that_is_repeated_keeps_its_number() -> None:
    there = [result(BASELINE, 0, 0.01), failure(BASELINE, 1, "interrupted"), result(BASELINE, 2, 0.01)]
    with pytest.raises(LaunchesNeeded) as caught:
        ledger(there).measured([BASELINE], 3, ALONE)
    assert [(launch.number, launch.round) for launch in caught.value.launches] == [(1, 1)]


def test_later_launches_of_a_stage_do_not_change_an_earlier_decision() -> None:
    """The candidate was dropped after two launches; a slow third of the baseline must not bring it back."""
    times = {BASELINE.trial_id: [0.010, 0.010, 0.020, 0.010, 0.010], CANDIDATES[0].trial_id: [0.013, 0.013]}
    search_answer, results = search(
        lambda measured: singles(measured, BASELINE, CANDIDATES[:1], 5, 0.03),
        lambda trial, n: times[trial.trial_id][n],
    )
    assert isinstance(search_answer, tuple)
    assert search_answer[1] == {CANDIDATES[0].trial_id}
    assert len(results) == 7


def test_what_is_clearly_worse_is_dropped_after_few_launches() -> None:
    slow, slower, fast = (trial.trial_id for trial in CANDIDATES[:3])
    factors = {slow: 1.1, slower: 1.5, fast: 0.7}
    search_answer, results = search(
        lambda measured: singles(measured, BASELINE, CANDIDATES[:3], 5, 0.03),
        lambda trial, n: 0.01 * factors.get(trial.trial_id, 1.0),
    )
    assert isinstance(search_answer, tuple)
    comparisons, dropped = search_answer
    assert dropped == {slower}
    verdicts = {comparison.candidate.trial.trial_id: comparison.verdict for comparison in comparisons}
    assert verdicts == {slow: "slower", slower: "slower", fast: "faster"}
    counts = {trial: sum(launch.trial_id == trial for launch in results) for trial in factors}
    assert counts == {slow: 5, slower: SCREENING, fast: 5}


def test_fewer_launches_than_screening_takes_are_enough() -> None:
    _, results = search(
        lambda measured: singles(measured, BASELINE, CANDIDATES, 1, 0.03), lambda trial, n: 0.01
    )
    assert len(results) == len(TRIALS)


@pytest.mark.parametrize("status", ["failed", "hang", "oom", "invalid"])
def test_a_failed_candidate_is_left_out_and_blocks_nothing(status: str) -> None:
    there = [failure(CANDIDATES[0], 0, status)]
    there += [result(trial, n, 0.01) for trial in (BASELINE, CANDIDATES[1]) for n in range(5)]
    measured = ledger(there)
    comparisons, dropped = singles(measured, BASELINE, CANDIDATES[:2], 5, 0.03)
    assert [comparison.candidate.trial.trial_id for comparison in comparisons] == [CANDIDATES[1].trial_id]
    assert not dropped
    assert measured.failed == {CANDIDATES[0].trial_id: f"{status}: lost"}


def test_a_baseline_that_never_works_ends_the_search() -> None:
    there = [failure(BASELINE, n) for n in range(2)]
    there += [result(CANDIDATES[0], n, 0.01) for n in range(2)]
    measured = ledger(there)
    assert singles(measured, BASELINE, CANDIDATES[:1], 5, 0.03) == ((), frozenset())
    assert measured.failed == {BASELINE.trial_id: "failed: lost"}
    assert confirmed(measured, BASELINE, BASELINE, 5, 0.03) is None


def test_a_launch_that_the_baseline_loses_does_not_lose_the_search() -> None:
    there = [failure(BASELINE, 3), *(result(BASELINE, n, 0.01) for n in (0, 1, 2, 4))]
    there += [result(CANDIDATES[0], n, 0.005) for n in range(5)]
    measured = ledger(there)
    ((comparison,), _) = singles(measured, BASELINE, CANDIDATES[:1], 5, 0.03)
    assert comparison.verdict == "faster"
    assert measured.failed == {}


def test_an_interrupted_launch_is_made_again() -> None:
    there = [failure(BASELINE, 0, "interrupted"), result(BASELINE, 1, 0.01)]
    assert asked(there, [BASELINE], 2) == [(BASELINE.trial_id, 0)]
    assert ledger(there).failed == {}


def levers(**factors: float) -> tuple[dict[frozenset[str], Trial], StepTime]:
    """A trial for every set of levers; a factor of `ab` holds where both a and b are on."""
    names = sorted({letter for key in factors for letter in key})
    sets = [
        frozenset(name for bit, name in enumerate(names) if number >> bit & 1)
        for number in range(1 << len(names))
    ]
    built = {names_on: make_trial(seed=number) for number, names_on in enumerate(sets)}
    back = {trial.trial_id: names_on for names_on, trial in built.items()}

    def step_s(trial: Trial, launch: int) -> float:
        time_s = 0.01
        for key, factor in factors.items():
            time_s *= factor if set(key) <= back[trial.trial_id] else 1.0
        return time_s

    return built, step_s


def combining(search_ledger: SearchLedger, build: Callable[[frozenset[str]], Trial | None]) -> Combining:
    return Combining(ledger=search_ledger, build=build, confirmations=5)


def combined(
    best: str, others: Sequence[str], without: Iterable[frozenset[str]] = (), **factors: float
) -> tuple[frozenset[str], tuple[Attempt, ...]]:
    built, step_s = levers(**factors)
    refused = set(without)
    search_answer, _ = search(
        lambda measured: combining(measured, lambda on: None if on in refused else built[on]).search(
            best, others
        ),
        step_s,
    )
    assert isinstance(search_answer, tuple)
    kept, attempts = search_answer
    return kept, attempts


def test_what_helps_together_is_kept_and_what_hurts_is_left_out() -> None:
    kept, attempts = combined("a", ["b", "c"], a=0.7, b=0.8, c=0.9, ac=1.4)
    assert kept == {"a", "b"}
    assert [(attempt.text, attempt.adds, attempt.kept) for attempt in attempts] == [
        ("b", True, True),
        ("c", True, False),
        ("a", False, True),
    ]
    assert [round(attempt.speedup or 0.0, 2) for attempt in attempts] == [1.25, 0.79, 1.43]


def test_what_no_longer_earns_its_place_is_taken_out() -> None:
    """a was best alone, but b and c together do what it did."""
    kept, attempts = combined("a", ["b", "c"], a=0.7, b=0.8, c=0.5, abc=1 / 0.7)
    assert kept == {"b", "c"}
    assert [(attempt.text, attempt.kept) for attempt in attempts if not attempt.adds] == [
        ("a", False),
        ("b", True),
        ("c", True),
    ]


def test_the_last_lever_is_never_taken_out() -> None:
    kept, attempts = combined("a", ["b"], a=0.995, b=0.98, ab=1.0)
    assert kept == {"b"}
    assert [(attempt.text, attempt.adds, attempt.kept) for attempt in attempts] == [
        ("b", True, True),
        ("a", False, False),
    ]


def test_a_gain_of_less_than_one_percent_is_not_kept() -> None:
    assert combined("a", ["b"], a=0.7, b=0.995)[0] == {"a"}


def test_a_combination_that_cannot_be_built_is_passed_over() -> None:
    kept, attempts = combined("a", ["b", "c"], [frozenset("ab")], a=0.7, b=0.8, c=0.9)
    assert kept == {"a", "c"}
    assert "b" not in {attempt.text for attempt in attempts}


def test_a_combination_that_fails_is_passed_over() -> None:
    built, _ = levers(a=0.7, b=0.8)
    both, alone = built[frozenset("ab")], built[frozenset("a")]
    first = Stage("add", 0)
    there = [failure(both, 0, stage=first), *(result(alone, n, 0.007, first) for n in range(3))]
    outcome = combining(ledger(there), lambda on: built[on]).search("a", ["b"])
    assert outcome == (frozenset("a"), ())


def test_an_obvious_difference_takes_one_pair_of_launches_and_a_small_one_more() -> None:
    _, attempts = combined("a", ["b", "c"], a=0.7, b=0.5, c=0.97)
    assert [(attempt.text, attempt.launches) for attempt in attempts if attempt.adds] == [("b", 1), ("c", 2)]


def test_pairs_that_disagree_are_followed_by_a_third_and_then_their_mean_counts() -> None:
    built, _ = levers(a=0.7, b=0.9)
    both = built[frozenset("ab")]
    times = {0: 0.0070, 1: 0.0060, 2: 0.0069}  # against 0.0070: no gain, a large one, nearly none

    def step_s(trial: Trial, launch: int) -> float:
        return times[launch] if trial is both else 0.0070

    search_answer, _ = search(
        lambda measured: combining(measured, lambda on: built[on]).search("a", ["b"]), step_s
    )
    assert isinstance(search_answer, tuple)
    kept, attempts = search_answer
    assert attempts[0].launches == 3
    assert kept == {"a"}  # 5 % on average, but with an error as large


def spending(results: Sequence[Result], budget_s: float, slow: Sequence[Trial] = ()) -> SearchLedger:
    """A ledger where every launch took ten seconds."""
    ids = {trial.trial_id for trial in slow}
    timed = [dataclasses.replace(launch, duration_s=10.0) for launch in results]
    return SearchLedger(
        results=timed,
        seed=0,
        baseline=BASELINE.trial_id,
        budget_s=budget_s,
        is_slow=lambda trial: trial.trial_id in ids,
    )


def launches_made(read: Callable[[Sequence[Result]], object]) -> list[Key]:
    results: list[Result] = []
    while True:
        try:
            read(results)
        except LaunchesNeeded as needed:
            results += [answer(launch, 0.01) for launch in needed.launches]
        else:
            return [launch.key for launch in results]


@pytest.mark.parametrize(("budget_s", "rounds"), [(120.0, 1), (270.0, 2), (700.0, 5), (1e6, 5)])
def test_looking_at_levers_alone_leaves_most_of_a_budget_to_combining(budget_s: float, rounds: int) -> None:
    made = launches_made(
        lambda results: explore(
            spending(results, budget_s), BASELINE, CANDIDATES[:3], 5, 0.03, BEFORE_COMBINING
        )
    )
    assert len(made) == 4 * rounds


@pytest.mark.parametrize(("budget_s", "is_tried"), [(300.0, False), (500.0, True)])
def test_what_starts_slowly_is_looked_at_alone_only_where_there_is_time(
    budget_s: float, is_tried: bool
) -> None:
    slow = CANDIDATES[0]
    made = launches_made(
        lambda results: explore(
            spending(results, budget_s, [slow]), BASELINE, CANDIDATES[:3], 5, 0.03, BEFORE_COMBINING
        )
    )
    assert (slow.trial_id in {trial for trial, _ in made}) == is_tried


def test_combining_stops_where_confirming_would_not_fit_any_more() -> None:
    built, _ = levers(a=0.7, b=0.5, c=0.5)
    built[frozenset()] = BASELINE

    def read(results: Sequence[Result]) -> tuple[frozenset[str], tuple[Attempt, ...]]:
        # One pair and ten launches to confirm: 120 of 135 seconds.
        return combining(spending(results, 135.0), lambda on: built[on]).search("a", ["b", "c"])

    there = [result(BASELINE, 0, 0.01), result(built[frozenset("a")], 0, 0.007)]
    there = [dataclasses.replace(launch, duration_s=0.0) for launch in there]
    with pytest.raises(LaunchesNeeded):
        read([])
    _, attempts = read(there + [result(built[frozenset(on)], 0, 0.01, Stage("add", 0)) for on in ("ab", "a")])
    assert [(attempt.text, attempt.speedup is None, attempt.kept) for attempt in attempts] == [
        ("b", False, False),
        ("c", True, False),
    ]


def test_the_time_of_an_interrupted_run_is_not_charged_to_the_one_that_resumes_it() -> None:
    there = [dataclasses.replace(result(BASELINE, 0, 0.01), duration_s=500.0)]
    resumed = SearchLedger(results=there, seed=0, budget_s=100.0, earlier=1)
    assert resumed.spent_s == 0.0
    assert SearchLedger(results=there, seed=0, budget_s=100.0).spent_s == 500.0


def test_a_slow_start_is_expected_to_be_faster_the_second_time() -> None:
    slow = CANDIDATES[0]
    once = spending([result(slow, 0, 0.01)], 100.0, [slow])
    twice = spending([result(slow, n, 0.01) for n in range(2)], 100.0, [slow])
    assert once.expected_s(slow) < twice.expected_s(slow) == 10.0


def test_the_winner_is_confirmed_by_launches_that_did_not_choose_it() -> None:
    comparison, results = search(
        lambda measured: confirmed(measured, BASELINE, CANDIDATES[0], 5, 0.03),
        lambda trial, n: 0.01 if trial is BASELINE else 0.008,
    )
    assert {(launch.stage, launch.round) for launch in results} == {(CONFIRM, n) for n in range(5)}
    assert getattr(comparison, "verdict", None) == "faster"


def test_reading_again_gives_the_same_answer_and_asks_for_nothing() -> None:
    def read(search_ledger: SearchLedger) -> object:
        comparisons, dropped = singles(search_ledger, BASELINE, CANDIDATES, 5, 0.03)
        judged = [(comparison.candidate.trial.trial_id, comparison.verdict) for comparison in comparisons]
        return judged, dropped, [round(comparison.speedup.value, 12) for comparison in comparisons]

    search_answer, results = search(read, lambda trial, n: 0.01 * (1.0 + TRIALS.index(trial) / 20))
    assert read(ledger(results)) == search_answer
    assert read(ledger(results[::-1])) == search_answer  # the order of the lines says nothing
