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
        "an interval requires at least 2 launches, a claim at least 5.",
        low=1,
        high=10_000,
        sweep=False,
        common="Run",
        brief="Launches per trial; a claim needs 5.",
    )
    repeat_disturbed: bool = setting(
        True,
        "Repeat launches that other processes disturbed, adding at most as many launches as were requested. "
        "Launches that are still disturbed are left out if the trial has others.",
        sweep=False,
    )
    budget: float | None = setting(
        None,
        "Time budget of the run (90s, 10m, 2h), including the time to load torch. A launch that would exceed "
        "it is not started, or is stopped.",
        kind="duration",
        low=1,
        sweep=False,
        common="Run",
        brief="Time budget of the run: 90s, 10m, 2h.",
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
        "PASSWORD, ...), and values that look like keys (hf_..., a password in a URL, ...). To continue or "
        "repeat such a run, set the variables that it asks for.",
        sweep=False,
    )
    allow_oom: bool = setting(
        False,
        "Run even if the forecast exceeds the available memory; such trials are refused otherwise.",
        sweep=False,
    )
    init_timeout: float = setting(
        INIT_TIMEOUT_S,
        "Time limit for loading torch, starting the ranks and joining the process group.",
        kind="duration",
        low=1,
        sweep=False,
    )
    warmup_timeout: float = setting(
        600.0, "Time limit for the warm-up steps.", kind="duration", low=1, sweep=False
    )
    stall_timeout: float | None = setting(
        None,
        "A measured rank without progress for this long counts as hung; auto is 30 s or 20 times the slowest "
        "warm-up step, whichever is longer.",
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
        "Time between SIGTERM and SIGKILL when a training command is stopped.",
        kind="duration",
        low=0.1,
        sweep=False,
    )
