"""Memory per rank in another setup: what one rank took, with what the strategy adds or cuts."""

from scalescope.analysis.prediction.prediction import Range
from scalescope.analysis.prediction.profiles import MeasuredProfile
from scalescope.analysis.prediction.setup import Setup
from scalescope.catalog import cards
from scalescope.catalog.training import STATE_VALUES
from scalescope.catalog.traits import MemoryLayout
from scalescope.experiment.trial import Trial

_SAME, _OTHER = 0.05, 0.15  # half widths: as measured, and by formulas of another strategy


def memory_per_rank(measured: MeasuredProfile, trial: Trial, setup: Setup) -> Range | None:
    """Bytes of the device at the peak; None where the measurement or a formula is missing."""
    alone = measured.memory_bytes
    layout = _layout(trial, setup)
    if alone is None or layout is None:
        return None
    before = (measured.trial.memory_layout if measured.trial.is_wrapped else None) or MemoryLayout()
    added = _added(measured, before, layout)
    cut = _cut(measured, layout, setup.world_size)
    if added is None or cut is None:
        return None
    value = max(0.0, alone + added - cut)
    half = value * (_SAME if not layout.sharded else _OTHER)
    return Range(value=value, low=value - half, high=value + half)


def _layout(trial: Trial, setup: Setup) -> MemoryLayout | None:
    if trial.is_command:
        return MemoryLayout() if setup.strategy == "ddp" else None
    layout: MemoryLayout | None = cards.card("strategies", setup.strategy).memory_layout(trial.settings)
    return layout


def _added(measured: MeasuredProfile, before: MemoryLayout, layout: MemoryLayout) -> float | None:
    """What the strategy keeps besides: copies of the gradients, or parameters that it gathers."""
    parameters = measured.profile.gradient_bytes
    copies = layout.copies_gradients + layout.keeps_first_buckets
    added = float(parameters * max(0, copies - before.copies_gradients - before.keeps_first_buckets))
    if layout.gathers == "nothing":
        return added
    units = [unit.parameter_bytes for unit in measured.profile.units]
    if layout.gathers == "block" and not units:
        return None
    gathered = max(units) if layout.gathers == "block" else parameters
    return added + (gathered / 2 if layout.gathers_16_bit else gathered)


def _cut(measured: MeasuredProfile, layout: MemoryLayout, ranks: int) -> float | None:
    """What a rank no longer holds of the states that are cut over all ranks."""
    parameters = measured.profile.gradient_bytes
    cut = 0.0
    for state in layout.sharded:
        values = STATE_VALUES.get(measured.trial.optimizer) if state == "optimizer" else 1
        if values is None:
            return None
        cut += parameters * values * (1.0 - 1.0 / ranks)
    return cut
