"""Other load: other processes used what the ranks needed, so the figures are not the job's own."""

from scalescope.analysis.configurations import configurations
from scalescope.analysis.other_load import RunLoad, load_of, load_text, mean_load
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Advice, Evidence, Finding
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK, repeating_command

OTHER_LOAD = "other load"


def other_load_rule(run: Run, cases: tuple[Facts, ...]) -> Finding | None:
    load = load_of(run)
    if not load.is_present:
        return None
    lost, ranks = _lost(run, cases)
    explains = lost if load.mean.delays_ranks or load.mean.uses_gpus else 0.0
    text = load_text(load.mean)
    return Finding(
        rule=OTHER_LOAD,
        leads=explains > 0.0,
        claim=f"{text[0].upper()}{text[1:]} during the measurement{_disturbed(load)}.",
        lost=explains,
        share=explains / ranks,
        evidence=tuple(_evidence(load)),
        advice=(
            Advice(
                label="stop the other processes and measure again",
                argv=repeating_command(run.path, run.record) or CHECK,
            ),
        ),
    )


def _lost(run: Run, cases: tuple[Facts, ...]) -> tuple[float, int]:
    """Ranks' worth of speed that is lost at the worst place, and of how many ranks.

    Of ranks that are compared with fewer it is all that they lose: no other rule can say how much of it
    others caused. Of others only the time without a core is known, where no undisturbed launch is left.
    """
    if cases:
        return max(
            (max(0.0, facts.ranks * (1.0 - facts.row.efficiency.value)), facts.ranks) for facts in cases
        )
    asked = (member for member in configurations(run.results) if not member.trial.is_ablation)
    waits = (
        ((mean_load(member.loads).longest_wait or 0.0) * member.trial.world_size, member.trial.world_size)
        for member in asked
        if member.is_disturbed
    )
    return max(waits, default=(0.0, 1))


def _disturbed(load: RunLoad) -> str:
    if not load.disturbed:
        return "; the ranks did not have to wait for them"
    return f"; {load.disturbed} of {load.launches} launches were disturbed"


def _evidence(load: RunLoad) -> list[Evidence]:
    mean, evidence = load.mean, []
    if mean.other_cores is not None:
        evidence.append(Evidence(name="cores used by others", value=mean.other_cores, source="/proc/stat"))
    if mean.stolen_cores is not None:
        evidence.append(Evidence(name="stolen cores", value=mean.stolen_cores, source="/proc/stat"))
    if mean.longest_wait is not None:
        source = "schedstat of the rank that waited most"
        evidence.append(
            Evidence(name="time without a core", value=f"{mean.longest_wait * 100:.0f} %", source=source)
        )
    if mean.pressure is not None:
        evidence.append(
            Evidence(name="CPU pressure", value=f"{mean.pressure * 100:.0f} %", source="/proc/pressure/cpu")
        )
    if mean.load_average is not None:
        evidence.append(Evidence(name="load average", value=mean.load_average, source="over one minute"))
    if mean.gpu_processes is not None:
        evidence.append(Evidence(name="other processes on GPUs", value=mean.gpu_processes, source="NVML"))
    return evidence
