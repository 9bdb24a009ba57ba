"""Measuring from Python: `scale`, `train`, `comm` and `tune`, with settings as keywords named like flags.

What measures is imported inside the calls: a user's file imports this module in every rank too.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scalescope.api.call import Call, refuse_in_rank

if TYPE_CHECKING:
    from pathlib import Path

    from scalescope.api.functions import Build
    from scalescope.api.results import Collectives, Scaling, Trained, Tuned


def scale(
    build: "Build | None" = None,
    *,
    waterfall: bool = True,
    progress: bool | None = None,
    resume: bool = False,
    **settings: Any,
) -> "Scaling":
    """Measure how training scales over ranks, and where the lost speed goes.

    `build` is a function at the top level of a file, "FILE.py:FUNCTION", "MODULE:FUNCTION" or the name of a
    built-in workload. Settings are named like flags: `world_size=[1, 2]`, `budget="2m"`.
    """
    refuse_in_rank("scale")
    from scalescope.api.results import Scaling
    from scalescope.api.running import measure
    from scalescope.studies.scaling.scale import ScaleStudy

    options = ("build", "waterfall", "progress", "resume")
    call = Call(build=build, settings=settings, progress=progress, resume=resume, options=options)
    return measure(ScaleStudy(waterfall=waterfall), call, Scaling)


def train(
    build: "Build | None" = None,
    *,
    breakdown: bool = True,
    profile: bool = False,
    profile_steps: int = 3,
    progress: bool | None = None,
    resume: bool = False,
    **settings: Any,
) -> "Trained":
    """Measure how fast one configuration trains, or each value of a list, and what a step consists of.

    `build` and settings are those of `scale`. `profile` also records a trace of `profile_steps` steps.
    """
    refuse_in_rank("train")
    from scalescope.api.results import Trained
    from scalescope.api.running import measure
    from scalescope.api.study_options import profiling_of
    from scalescope.studies.train import TrainStudy

    options = ("build", "breakdown", "profile", "profile_steps", "progress", "resume")
    call = Call(build=build, settings=settings, progress=progress, resume=resume, options=options)
    study = TrainStudy(breakdown=breakdown, profiling=profiling_of(profile_steps) if profile else None)
    return measure(study, call, Trained)


def comm(
    *,
    min_busbw: str | None = None,
    json_nccl: "str | Path | None" = None,
    progress: bool | None = None,
    resume: bool = False,
    **settings: Any,
) -> "Collectives":
    """Measure the collectives that training uses, as nccl-tests does.

    With `min_busbw="10GB/s"`, `exit_code` is 8 where a collective is slower.
    """
    refuse_in_rank("comm")
    from pathlib import Path

    from scalescope.api.results import Collectives
    from scalescope.api.running import measure
    from scalescope.studies.comm import CommStudy, rate_from

    options = ("min_busbw", "json_nccl", "progress", "resume")
    call = Call(settings=settings, progress=progress, resume=resume, options=options)
    study = CommStudy(
        least_busbw=None if min_busbw is None else rate_from(min_busbw),
        nccl_json=None if json_nccl is None else Path(json_nccl),
    )
    return measure(study, call, Collectives)


def tune(
    build: "Build | None" = None,
    *,
    levers: str | Sequence[str] = "all",
    threshold: str = "3%",
    combine: bool = True,
    verify_loss: int | None = None,
    keep_numerics: bool = False,
    progress: bool | None = None,
    resume: bool = False,
    **settings: Any,
) -> "Tuned":
    """Find the settings that make one configuration faster, within `budget`, by default 3 minutes.

    `build` and settings are those of `scale`; `levers` are the settings to change.
    """
    refuse_in_rank("tune")
    from scalescope.api.results import Tuned
    from scalescope.api.running import measure
    from scalescope.api.study_options import tune_study

    own = ("levers", "threshold", "combine", "verify_loss", "keep_numerics")
    options = ("build", *own, "progress", "resume")
    call = Call(build=build, settings=settings, progress=progress, resume=resume, options=options)
    study = tune_study(levers, threshold, combine, verify_loss, keep_numerics)
    return measure(study, call, Tuned)
