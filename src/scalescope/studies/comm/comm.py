"""`comm`: how fast the network carries the collectives that training uses."""

import dataclasses
from pathlib import Path

from scalescope.analysis.collectives import collective_rows
from scalescope.errors import CannotRun, ExitCode
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.comm.nccl_tests import to_json
from scalescope.report.comm.sections import (
    communication_sections,
    curves_json,
    gate_section,
    next_after_communication,
)
from scalescope.results.files import to_text, write_atomically
from scalescope.results.run import Run
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.scaling.network import listeners
from scalescope.studies.scaling.scale import chosen_device, default_most_ranks
from scalescope.studies.study import StudyReport, run_study

DEFAULTS = {"repeats": 1}


def comm(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    most_ranks: int | None = None,
    least_busbw: float | None = None,
    nccl_json: Path | None = None,
) -> StudyReport:
    """Measure the collectives; below `least_busbw` bytes per second the exit code says so."""
    machine = launcher.machine()
    experiment = _with_world_size(request.experiment(DEFAULTS), machine, most_ranks)
    expansion = expand(experiment, machine, many=request.yes)
    trials = (*expansion.trials, *_disambiguated(expansion.trials, machine, len(launcher.nodes())))
    plan = Plan(
        experiment=expansion.experiment,
        trials=(*trials, *(listeners(expansion.trials) if launcher.repeatable else ())),
        machine=machine,
        notes=expansion.notes,
    )

    def files(run: Run) -> dict[str, str]:
        return {"curve.json": to_text(curves_json(collective_rows(run.results)))}

    report = run_study(
        request, plan, launcher, watcher, communication_sections, next_after_communication, files
    )
    return judged(report, least_busbw, nccl_json)


def _disambiguated(trials: tuple[Trial, ...], machine: Machine, nodes: int) -> tuple[Trial, ...]:
    """The same inside one node and between nodes of one rank each, for trials that mix the two."""
    ranks = machine.ranks_per_node or 1
    if nodes < 2 or ranks < 2:
        return ()
    mixed = [one for one in trials if one.world_size > max(nodes, ranks) and not one.settings["pairs"]]
    found = [
        trial.replace(among=among, world_size=size)
        for trial in mixed
        for among, size in (("one node", ranks), ("one a node", nodes))
    ]
    return tuple({trial.trial_id: trial for trial in found}.values())


def judged(report: StudyReport, least_busbw: float | None, nccl_json: Path | None) -> StudyReport:
    """Write nccl-tests' JSON where it is wanted, and let the exit code say whether the gate was missed."""
    if report.run is None:  # a dry run measured nothing that a gate could judge
        return report
    rows = collective_rows(report.run.results)
    if nccl_json is not None:
        # nccl-tests' layout cannot say where ranks are: only what was asked for goes there.
        write_atomically(nccl_json, to_text(to_json(row for row in rows if row.among == "all")))
    if least_busbw is None or report.exit_code:
        return report
    section, missed = gate_section(rows, least_busbw)
    code = ExitCode.GATE_MISSED if missed else ExitCode.OK
    return dataclasses.replace(report, sections=(*report.sections, section), exit_code=code)


def _with_world_size(experiment: Experiment, machine: Machine, most_ranks: int | None) -> Experiment:
    if "world_size" in experiment.settings:
        return experiment
    device = chosen_device(experiment, machine)
    all_ranks = default_most_ranks(device, machine, experiment) if device == "cuda" else 2
    ranks = most_ranks or all_ranks
    if ranks < 2:
        raise CannotRun(
            "one GPU has nobody to talk to; --split-gpu 2 makes two ranks of it, --device cpu uses gloo"
        )
    return experiment.with_settings(world_size=(ranks,))
