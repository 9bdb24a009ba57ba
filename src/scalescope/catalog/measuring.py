"""Options of every measuring verb for the run itself; none of them changes what a trial measures."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting

INIT_TIMEOUT_S = 300.0
NEXT_LAUNCH = "next"  # of --only-launch: the one that results so far call for


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The run: how many launches, how long, and where results go."""

    repeats: int = setting(
        1,
        "Launches per trial, interleaved in random order. The launch is the statistical unit: "
        "an interval needs at least 2, a claim at least 5.",
        low=1,
        high=10_000,
        sweep=False,
        common="Run",
        brief="Launches per row; 5 allow a claim.",
    )
    repeat_disturbed: bool = setting(
        True,
        "Repeat launches that other processes disturbed, at most as often as launches were asked for; "
        "what still is disturbed is left out where the trial has other launches.",
        sweep=False,
    )
    budget: float | None = setting(
        None,
        "Time budget of the run (90s, 10m, 2h), loading torch included; a launch that would exceed it is not "
        "started, or ended.",
        kind="duration",
        low=1,
        sweep=False,
        common="Run",
        brief="Time for the run: 90s, 10m, 2h.",
    )
    name: str | None = setting(None, "Name of the run, shown in results and reports.", sweep=False)
    output_dir: str | None = setting(
        None,
        "Output folder of the run; default runs/<time>-<verb>.",
        sweep=False,
        common="Run",
        brief="Where results go. [default: runs/<time>-<verb>]",
    )
    order_seed: int = setting(0, "Seed for the random order of launches.", low=0, high=2**31, sweep=False)
    redact_env: bool = setting(
        True,
        "Do not store secrets of --env, --vary and the command: values named like keys (KEY, TOKEN, "
        "PASSWORD, ...), or that look like keys (hf_..., a password in a URL, ...). To continue or repeat "
        "such a run, set the variables that it asks for.",
        sweep=False,
    )
    allow_oom: bool = setting(
        False,
        "Start also what needs more memory than there is by its forecast, which is refused otherwise.",
        sweep=False,
    )
    init_timeout: float = setting(
        INIT_TIMEOUT_S,
        "Time limit for loading torch, for starting the ranks and for joining the process group.",
        kind="duration",
        low=1,
        sweep=False,
    )
    warmup_timeout: float = setting(
        600.0, "Time limit for the warm-up steps.", kind="duration", low=1, sweep=False
    )
    stall_timeout: float | None = setting(
        None,
        "Time without progress after which a measured rank counts as hung; auto is 30 s or 20 times the "
        "slowest warm-up step, whichever is longer.",
        kind="duration",
        low=0.1,
        none_word="auto",
        sweep=False,
    )
    teardown_timeout: float = setting(
        5.0,
        "Time limit for ranks to exit after their results are written.",
        kind="duration",
        low=0.1,
        sweep=False,
    )
    end_timeout: float = setting(
        1.0,
        "Time that a training command gets to end after SIGTERM, before SIGKILL.",
        kind="duration",
        low=0.1,
        sweep=False,
    )
