"""Replaying made-up allocator events: where the peak is and what lives there."""

from scalescope.worker.memory.allocator_trace import BACKWARD, FORWARD, AllocatorEvent, AllocatorPhase, replay

PHASES = [AllocatorPhase(FORWARD, 0), AllocatorPhase(BACKWARD, 5), AllocatorPhase("optimizer", 11)]
STEP = [
    AllocatorEvent("alloc", 0x10, 100),  # kept for backward
    AllocatorEvent("alloc", 0x20, 40),  # gone before forward ends
    AllocatorEvent("free_requested", 0x20, 40),
    AllocatorEvent("free_completed", 0x20, 40),
    AllocatorEvent("alloc", 0x30, 60),  # kept for backward
    AllocatorEvent("alloc", 0x40, 70),  # a gradient
    AllocatorEvent("alloc", 0x50, 500),  # in passing: the peak
    AllocatorEvent("free_requested", 0x50, 500),
    AllocatorEvent("free_completed", 0x50, 500),
    AllocatorEvent("free_requested", 0x30, 60),
    AllocatorEvent("free_requested", 0x10, 100),
    AllocatorEvent("free_requested", 0x40, 70),
]


def test_the_peak_is_split_by_what_lives_there() -> None:
    breakdown = replay(STEP, PHASES, [0x40])
    assert breakdown.growth == 100 + 60 + 70 + 500
    assert (breakdown.activations, breakdown.gradients, breakdown.temporary) == (160, 70, 500)
    assert breakdown.held_after_forward == 160
    assert breakdown.given_back == 0


def test_parts_and_what_was_given_back_add_up() -> None:
    events = [AllocatorEvent("free_requested", 0x1, 30), AllocatorEvent("free_completed", 0x1, 30), *STEP]
    phases = [AllocatorPhase(phase.name, phase.start + 2 if phase.start else 0) for phase in PHASES]
    breakdown = replay(events, phases, [0x40])
    assert breakdown.given_back == 30  # reported twice, counted once
    assert (
        breakdown.growth
        == breakdown.activations + breakdown.gradients + breakdown.temporary - breakdown.given_back
    )


def test_an_address_used_again_is_another_block() -> None:
    events = [
        AllocatorEvent("alloc", 0x10, 8),
        AllocatorEvent("free_requested", 0x10, 8),
        AllocatorEvent("free_completed", 0x10, 8),
        AllocatorEvent("alloc", 0x10, 90),
    ]
    breakdown = replay(events, [AllocatorPhase(FORWARD, 0), AllocatorPhase(BACKWARD, 3)], [0x10])
    assert (breakdown.growth, breakdown.gradients, breakdown.temporary) == (90, 90, 0)


def test_a_block_where_a_gradient_came_to_lie_later_is_no_gradient() -> None:
    events = [
        AllocatorEvent("alloc", 0x10, 90),
        AllocatorEvent("free_requested", 0x10, 90),
        AllocatorEvent("alloc", 0x10, 8),
    ]
    breakdown = replay(events, [AllocatorPhase(FORWARD, 0), AllocatorPhase(BACKWARD, 2)], [0x10])
    assert (breakdown.temporary, breakdown.gradients) == (90, 0)


def test_several_forward_passes_each_hold_their_own() -> None:
    events = [
        AllocatorEvent("alloc", 0x10, 10),
        AllocatorEvent("free_requested", 0x10, 10),
        AllocatorEvent("alloc", 0x20, 20),
        AllocatorEvent("free_requested", 0x20, 20),
    ]
    phases = [
        AllocatorPhase(FORWARD, 0),
        AllocatorPhase(BACKWARD, 1),
        AllocatorPhase(FORWARD, 2),
        AllocatorPhase(BACKWARD, 3),
    ]
    breakdown = replay(events, phases, [])
    assert (breakdown.activations, breakdown.held_after_forward) == (20, 20)


def test_a_step_that_takes_nothing_has_no_peak() -> None:
    breakdown = replay([AllocatorEvent("segment_alloc", 1, 1 << 20)], PHASES[:1], [])
    assert breakdown.growth == breakdown.activations == breakdown.temporary == 0
