"""The glossary: what the terms in tables, figures and findings mean, and how each is measured.

The page explains terms with it, and docs/glossary.md is written from it.
"""

from dataclasses import dataclass

from scalescope.analysis.scaling.waterfall import (
    BETWEEN_RANKS,
    BUBBLE,
    COMMUNICATION,
    CONTENTION,
    COPIES,
    EXCHANGE,
    IDLE_HOST,
    IDLE_INPUT,
    IDLE_QUEUED,
    IMBALANCE,
    INPUT,
    MICROBATCHES,
    NOT_SIGNIFICANT,
    RANDOM_SKEW,
    SLOWED_COMPUTE,
    SMALLER_BATCH,
    STRAGGLERS,
    WAITING,
    WRAPPER,
)
from scalescope.analysis.training.step_waterfall import IDLE_BETWEEN, IDLE_SYNC, IDLE_UNKNOWN, OTHER_KERNELS
from scalescope.analysis.training.step_waterfall import IDLE_HOST as STEP_IDLE_HOST
from scalescope.analysis.training.step_waterfall import IDLE_INPUT as STEP_IDLE_INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryTerm:
    """A term, other words for it, and its explanation in plain sentences."""

    name: str
    plural: str = ""
    aliases: tuple[str, ...] = ()
    meaning: str
    measured: str

    @property
    def anchor(self) -> str:
        """The term's place in the page and in docs/glossary.md, as Markdown headings are linked."""
        return self.name.replace(" ", "-")

    @property
    def forms(self) -> tuple[str, ...]:
        """Everything in a text that means this term."""
        return (self.name, *((self.plural,) if self.plural else ()), *self.aliases)


GLOSSARY: tuple[GlossaryTerm, ...] = (
    GlossaryTerm(
        name="rank",
        plural="ranks",
        meaning="One process of a distributed job, usually with one GPU or a fixed set of CPU cores.",
        measured="Every rank records its own step times; results use the slowest rank of each step.",
    ),
    GlossaryTerm(
        name="world size",
        meaning="The number of ranks that work together in one launch.",
        measured="None; it is given with --world-size.",
    ),
    GlossaryTerm(
        name="trial",
        plural="trials",
        meaning="One combination of settings that is measured: workload, strategy, number of ranks, batch, "
        "precision and so on.",
        measured="Each trial is launched --repeats times. The same settings always have the same trial id.",
    ),
    GlossaryTerm(
        name="launch",
        plural="launches",
        meaning="One start of all ranks of a trial, from new processes to their end.",
        measured="One launch gives one value per quantity. Launches, not steps, are the unit of all "
        "statistics, because steps of one launch resemble each other.",
    ),
    GlossaryTerm(
        name="window",
        meaning="The part of a launch that is timed, after the warm-up steps.",
        measured="A number of steps, or the number of seconds given with --window.",
    ),
    GlossaryTerm(
        name="confidence interval",
        plural="confidence intervals",
        aliases=("95 % interval",),
        meaning="The range in which the true mean lies with 95 % confidence. A single launch has none.",
        measured="Student's t over launches; differences and ratios by common rounds, between two runs by "
        "Welch's t; ratios as logarithms.",
    ),
    GlossaryTerm(
        name="weak scaling",
        meaning="More ranks process more samples per step: the batch per rank stays the same.",
        measured="Throughput of N ranks divided by that of the smallest number of ranks, at the same batch "
        "per rank.",
    ),
    GlossaryTerm(
        name="strong scaling",
        meaning="More ranks share the same samples per step: the global batch stays the same.",
        measured="Throughput of N ranks divided by that of the smallest number of ranks, at the same global "
        "batch.",
    ),
    GlossaryTerm(
        name="efficiency",
        meaning="The share of the ideal speed that is reached; 100 % means that N ranks are N times as fast "
        "as one.",
        measured="The speedup divided by how many times more ranks there are than in the baseline.",
    ),
    GlossaryTerm(
        name="waterfall",
        meaning="The lost speed of N ranks, split into causes. Delivered speed and all causes add up to N. A "
        "cause that makes the ranks faster is negative and drawn left of zero.",
        measured="The job is measured again with one thing removed at a time; each cause is the difference "
        "of two step times.",
    ),
    GlossaryTerm(
        name=NOT_SIGNIFICANT,
        meaning="Causes in the waterfall that may be noise. They are drawn as one segment; the bar still "
        "adds up to N.",
        measured="The 95 % interval of each of these causes includes zero.",
    ),
    GlossaryTerm(
        name=SMALLER_BATCH,
        meaning="Speed lost because each rank computes fewer samples at once in strong scaling, which uses "
        "the device less efficiently.",
        measured="One rank's step with its share of the batch, minus the same share of its step with the "
        "full batch.",
    ),
    GlossaryTerm(
        name=WRAPPER,
        meaning="Speed lost to the code of the strategy around the model, such as DDP's gradient buckets, "
        "without any other rank.",
        measured="Step time of one rank inside the strategy, minus the step time of plain training on one "
        "rank.",
    ),
    GlossaryTerm(
        name=CONTENTION,
        meaning="Speed lost because ranks share cores, memory bandwidth, caches or power while they compute.",
        measured="Step time of a typical rank among N that do not communicate, minus the step time of one "
        "rank alone.",
    ),
    GlossaryTerm(
        name=STRAGGLERS,
        aliases=("straggler", "straggling rank"),
        meaning="Speed lost because every step waits for a rank that is persistently slower than the others.",
        measured="With communication removed, the slowest rank's step time minus a typical rank's. The rank "
        "is chosen in one half of the launches and its delay is read in the other half.",
    ),
    GlossaryTerm(
        name=RANDOM_SKEW,
        aliases=("skew", "jitter"),
        meaning="Speed lost because ranks arrive at exchanges at different times, with a different rank "
        "last each time.",
        measured="In recorded normal steps, the time by which a rank's exchange is longer than the "
        "shortest over ranks, minus what a persistently slow rank explains.",
    ),
    GlossaryTerm(
        name=COMMUNICATION,
        aliases=("exposed communication",),
        meaning="What exchanging data adds to a step: the part not hidden behind compute (exposed), and the "
        "slowdown of compute while data is sent. Waiting for late ranks is not part of it.",
        measured="Step time of full training minus that of the same ranks with communication removed, and "
        "minus waiting for other ranks.",
    ),
    GlossaryTerm(
        name=BETWEEN_RANKS,
        meaning="Everything that several ranks of a training command lose to each other (contention, "
        "stragglers and communication), if its communication cannot be removed and they cannot be separated.",
        measured="Step time minus that of the same command on one rank with as many samples.",
    ),
    GlossaryTerm(
        name=SLOWED_COMPUTE,
        meaning="Compute that takes longer because communication uses the same cores, memory or GPU at "
        "the same time.",
        measured="What communication adds to a step beyond the part that recorded steps show as exposed.",
    ),
    GlossaryTerm(
        name=WAITING,
        meaning="Time in which ranks wait at an exchange for ranks that arrive later and compute nothing.",
        measured="In recorded steps, the time by which a rank's exchange is longer than the shortest over "
        "ranks.",
    ),
    GlossaryTerm(
        name=COPIES,
        meaning="Copies between host and GPU during which nothing else runs.",
        measured="In one rank's step, from recorded steps; in the waterfall of N ranks, their excess "
        "over one rank.",
    ),
    GlossaryTerm(
        name=IDLE_HOST,
        meaning="The device has nothing to do because the host has not started the next work yet.",
        measured="Recorded steps of N ranks minus those of one rank.",
    ),
    GlossaryTerm(
        name=IDLE_INPUT,
        meaning="The device has nothing to do because the next samples are not there yet.",
        measured="Recorded steps of N ranks minus those of one rank.",
    ),
    GlossaryTerm(
        name=IDLE_QUEUED,
        meaning="Work was started but waits for work on another stream.",
        measured="Recorded steps of N ranks minus those of one rank.",
    ),
    GlossaryTerm(
        name=MICROBATCHES,
        meaning="Speed lost because a pipeline computes small parts of a batch, which uses the device less "
        "efficiently.",
        measured="Compute of all stages together minus that of one rank, in recorded steps, per rank.",
    ),
    GlossaryTerm(
        name=IMBALANCE,
        meaning="Speed lost because the slowest stage of a pipeline sets the pace of all.",
        measured="Compute of the slowest stage minus the mean over stages, in recorded steps.",
    ),
    GlossaryTerm(
        name=BUBBLE,
        meaning="Speed lost while a pipeline of N stages fills and empties: some stages have no microbatch.",
        measured="(N − 1) ÷ microbatches × compute of the slowest stage.",
    ),
    GlossaryTerm(
        name=EXCHANGE,
        meaning="Step time of a pipeline beyond compute and bubble: sending between stages, and idle "
        "time around it.",
        measured="Step time minus the terms above.",
    ),
    GlossaryTerm(
        name=INPUT,
        meaning="Waiting for the data loader. In the waterfall of N ranks: beyond what one rank waits as "
        "well.",
        measured="Step time with the loader minus that with preloaded samples, on N ranks and on one rank.",
    ),
    GlossaryTerm(
        name="unknown",
        meaning="A value that was not measured or could not be read. In the waterfall, causes that could not "
        "be separated from each other are unknown.",
        measured="None; the report names what is missing.",
    ),
    GlossaryTerm(
        name="step waterfall",
        meaning="One rank's step, divided into parts that add up to it: compute, copies, idle time by its "
        "cause. On the CPU: input, forward, backward, optimizer, rest.",
        measured="By ablations where something can be left out, on a GPU from recorded steps otherwise, on "
        "the CPU by the clock around each part.",
    ),
    GlossaryTerm(
        name="ideal step",
        meaning="The step that would compute the model's operations at the speed of a bare matrix product "
        "and do nothing else.",
        measured="Counted operations of the model divided by the measured speed of a matrix product in the "
        "same precision.",
    ),
    GlossaryTerm(
        name="MFU",
        meaning="Model FLOP/s utilization: the operations that the model needs per second, as a share of the "
        "GPU's dense peak in its data sheet, for the number format in use.",
        measured="Operations from the shapes of matrix products, convolutions and attention in recorded "
        "steps, or by a formula, divided by the timed step. Unknown where shapes are missing for more "
        "than 5 % of the time in products.",
    ),
    GlossaryTerm(
        name="HFU",
        meaning="Hardware FLOP/s utilization: the same for all operations that the GPU executes, including "
        "recomputed activations.",
        measured="As MFU, from recorded steps alone.",
    ),
    GlossaryTerm(
        name="share of a bare product",
        meaning="The model's operations per second as a share of what a single large matrix product reaches "
        "on the same device.",
        measured="Against a matrix product in the same number format, timed in the same run.",
    ),
    GlossaryTerm(
        name="replica",
        plural="replicas",
        meaning="Ranks that work on one batch together. Only replicas multiply the samples of a step.",
        measured="From the ranks over which DDP or FSDP average gradients; without them, from the device "
        "mesh of sharded parameters and from whether ranks receive the same input.",
    ),
    GlossaryTerm(
        name="kernel",
        plural="kernels",
        meaning="A function that runs on the GPU. The host launches kernels one after the other, thousands "
        "per step in some models.",
        measured="Counted in recorded steps, with their lengths and names.",
    ),
    GlossaryTerm(
        name=OTHER_KERNELS,
        meaning="GPU work that the step starts outside forward, backward and optimizer.",
        measured="From recorded steps.",
    ),
    GlossaryTerm(
        name=STEP_IDLE_INPUT,
        meaning="The GPU has nothing to do because the step waits for its batch.",
        measured="The step minus the same step with preloaded batches; without that, from recorded steps.",
    ),
    GlossaryTerm(
        name=IDLE_SYNC,
        meaning="The GPU has nothing to do because the host waited for it and has to launch new work first.",
        measured="In recorded steps, idle time that follows a wait of the host, scaled to steps without a "
        "profiler: an estimate.",
    ),
    GlossaryTerm(
        name=STEP_IDLE_HOST,
        aliases=("host-bound",),
        meaning="The GPU has nothing to do because the host needs longer to launch the next kernel than the "
        "GPU needs for the one before.",
        measured="In recorded steps, idle time before a kernel that was launched too late, scaled to steps "
        "without a profiler: an estimate.",
    ),
    GlossaryTerm(
        name=IDLE_BETWEEN,
        meaning="Short pauses of the GPU between two kernels although the second one was launched in time. "
        "With thousands of short kernels they add up.",
        measured="In recorded steps, pauses before kernels that were already queued.",
    ),
    GlossaryTerm(
        name=IDLE_UNKNOWN,
        meaning="The GPU has nothing to do, and recorded steps do not show why.",
        measured="From recorded steps.",
    ),
    GlossaryTerm(
        name="synchronization",
        plural="synchronizations",
        aliases=("host synchronization",),
        meaning="The host waits until the GPU has finished, for example because Python reads a number from "
        "it with .item().",
        measured="torch reports each in a few steps that are not timed; recorded steps show those that it "
        "does not report.",
    ),
    GlossaryTerm(
        name="graph break",
        plural="graph breaks",
        meaning="A place where torch.compile leaves its compiled code and runs Python, which costs time in "
        "every step.",
        measured="Counted by torch.compile, with its reasons.",
    ),
    GlossaryTerm(
        name="recompilation",
        plural="recompilations",
        meaning="torch.compile compiles again, usually because an input has another shape than before.",
        measured="Counted during the timed steps.",
    ),
    GlossaryTerm(
        name="pageable memory",
        meaning="Ordinary memory of the host. A copy from it to the GPU makes the host wait; a copy from "
        "page-locked (pinned) memory does not.",
        measured="Recorded steps name the kind of memory of each copy.",
    ),
    GlossaryTerm(
        name="ablation",
        plural="ablations",
        meaning="The same job with one thing removed, such as communication or data loading, to measure "
        "what that thing costs.",
        measured="Studies launch ablations automatically; they are not shown as results.",
    ),
    GlossaryTerm(
        name="lever",
        plural="levers",
        meaning="A setting that may make the job faster or smaller, such as precision or bucket size.",
        measured="scalescope tune tries expert settings first, then other levers, and races the best.",
    ),
    GlossaryTerm(
        name="busbw",
        aliases=("bus bandwidth",),
        meaning="Bandwidth of a collective, scaled to be comparable with the speed of the link for "
        "any number of ranks, as nccl-tests defines it.",
        measured="Bytes divided by the time of the collective, times a factor: 2(N − 1)/N for N ranks and "
        "all_reduce, other factors for other collectives.",
    ),
)
