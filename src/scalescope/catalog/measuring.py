"""What every measuring verb can be told about the run itself; none of it changes what a trial measures."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The run: how often, how long, where to."""

    repeats: int = setting(
        1,
        "Launches of each trial, interleaved in random order. The launch is the statistical unit: "
        "an interval needs 2, a claim 5.",
        low=1,
        high=10_000,
        sweep=False,
    )
    budget: float | None = setting(
        None,
        "Stop starting launches when this much time would be exceeded (90s, 10m, 2h).",
        kind="duration",
        low=1,
        sweep=False,
    )
    name: str | None = setting(None, "Name of the run, shown in results and reports.", sweep=False)
    output_dir: str | None = setting(None, "Folder of the run; default runs/<time>-<verb>.", sweep=False)
    order_seed: int = setting(0, "Seed of the random order of launches.", low=0, high=2**31, sweep=False)
    init_timeout: float = setting(
        300.0,
        "Limit for starting ranks and joining the group.",
        kind="duration",
        low=1,
        sweep=False,
    )
    warmup_timeout: float = setting(
        600.0, "Limit for the warm-up steps.", kind="duration", low=1, sweep=False
    )
    stall_timeout: float | None = setting(
        None,
        "Longest silence of a rank while it is measured; auto is 30 s or 20 of its slowest warm-up "
        "steps, whichever is more.",
        kind="duration",
        low=0.1,
        none_word="auto",
        sweep=False,
    )
    teardown_timeout: float = setting(
        5.0,
        "Limit for leaving after the results are written.",
        kind="duration",
        low=0.1,
        sweep=False,
    )
