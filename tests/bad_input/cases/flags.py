"""Flags of every verb: unknown, of a wrong type, repeated, or contradicting each other."""

from scalescope.errors import ExitCode
from tests.bad_input.case import Case, StoredRun, of_flags

_RUN = {"r": StoredRun("train")}

_MEASURING = [
    of_flags("no such verb", "scael", "no such verb 'scael'; did you mean scale?"),
    of_flags("verb that resembles nothing", "xyzzy", "no such verb 'xyzzy'; known: ", "scale"),
    of_flags("verb with escape codes", "\x1b[31mscale", "no such verb '\\x1b[31mscale'"),
    of_flags("flag before the verb", "--world-size 2 scale", "no such option --world-size"),
    of_flags(
        "unknown flag", "scale --wrold-size 2", "no such option --wrold-size; did you mean --world-size?"
    ),
    of_flags("unknown short flag", "scale -Q", "no such option -Q"),
    of_flags("flag with escape codes", "scale --\x1b[31m", "no such option"),
    of_flags("flag without its value", "scale --world-size", "--world-size", "requires an argument"),
    of_flags("value for a switch", "train --amp=1", "--amp", "does not take a value"),
    of_flags("underscore in a flag", "train --batch_size 4", "did you mean --batch-size?"),
    of_flags("flag of another verb", "scale --profile", "no such option --profile"),
    of_flags("one value given twice", "train --repeats 2 --repeats 3", "--repeats takes one value"),
    of_flags("same value twice", "scale --world-size 1,2,1", "--world-size: 1 is given twice"),
    of_flags(
        "empty value in a list", "scale --world-size 1,,2", "--world-size: expected a whole number, got ''"
    ),
    Case(
        name="empty value",
        command=("scale", "--world-size", ""),
        says=("--world-size: expected a whole number, got ''",),
    ),
    Case(
        name="blank value",
        command=("scale", "--world-size", "  "),
        says=("--world-size: expected a whole number, got ''",),
    ),
    Case(
        name="value with a line break",
        command=("train", "--backend", "x\nscalescope: ok"),
        says=("--backend:", "\\n"),
    ),
    Case(
        name="value with escape codes",
        command=("train", "--backend", "\x1b[2J"),
        says=("--backend:", "\\x1b[2J"),
    ),
    Case(
        name="value with a lone surrogate",
        command=("train", "--name", "a\udcff"),
        says=("--name:", "\\udcff"),
    ),
    Case(
        name="list of 100,000 values",
        command=("train", "--batch-size", "1," * 100_000 + "1"),
        says=("--batch-size: ",),
    ),
    of_flags("ranks in words", "scale --world-size two", "--world-size: expected a whole number, got 'two'"),
    of_flags(
        "alias in words", "scale --nproc-per-node two", "--world-size: expected a whole number, got 'two'"
    ),
    of_flags("no ranks", "scale --world-size 0", "--world-size: must be at least 1, got 0"),
    of_flags("a million ranks", "scale --world-size 1000000", "--world-size: must be at most 65536"),
    of_flags("both batches", "scale --batch-size 4 --global-batch-size 8", "--global-batch-size", "not both"),
    of_flags("window and epochs", "train --window 2s --epochs 3", "--window cannot be used with --epochs"),
    of_flags(
        "window and steps",
        "train --window 2s --steps-per-epoch 30",
        "--window cannot be used with --steps-per-epoch",
    ),
    of_flags("window in words", "train --window long", "--window: expected a time such as 90s"),
    of_flags("negative window", "train --window -2s", "--window: expected a time such as 90s"),
    of_flags("unknown unit of time", "train --budget 3y", "--budget: expected a time such as 90s"),
    of_flags("shortcut beside its setting", "train --amp --precision bf16", "--amp is short for --precision"),
    of_flags(
        "threads twice",
        "train --threads-per-rank 2 --env OMP_NUM_THREADS=1",
        "cannot be used with --env OMP_NUM_THREADS",
    ),
    of_flags("launch number in words", "train --only-launch first", "--only-launch", "'first'"),
    of_flags("next for a plan", "train --only-launch next", "--only-launch: next is not for train"),
    of_flags("number for a search", "tune --only-launch 3", "--only-launch: 3 is not for tune"),
    of_flags("launch number of 5,000 digits", f"train --only-launch {'9' * 5000}", "--only-launch"),
    of_flags("launch number in another script", "train --only-launch ²", "--only-launch"),
    of_flags("nothing to resume", "train --resume", "resume"),
    of_flags(
        "folder that is not there to resume",
        "train --device cpu --resume --output-dir gone",
        "gone has no run to continue",
    ),
    of_flags("ablation that is not there", "scale --waterfall=3", "--waterfall"),
    of_flags("split beyond its ranks", "train --split-gpu 1", "--split-gpu: must be at least 2"),
    of_flags("verify loss too short", "tune --verify-loss 1", "--verify-loss"),
    of_flags(
        "profile steps without a profile", "train --profile-steps 3", "--profile-steps requires --profile"
    ),
    of_flags("profile ranks in words", "train --profile --profile-ranks zero", "--profile-ranks"),
    of_flags("profile ranks that are not there", "train --profile --profile-ranks 7", "--profile-ranks", "7"),
    of_flags("profile of no steps", "train --profile --profile-steps 0", "--profile-steps"),
    of_flags("unknown lever", "tune --levers precison", "precison", "did you mean precision?"),
    of_flags("lever with a wrong value", "tune --levers precision=fp7", "fp7"),
    of_flags("empty lever", "tune --levers ,", "--levers"),
    of_flags("threshold in words", "tune --threshold small", "--threshold", "'small'"),
    of_flags("threshold of 0", "tune --threshold 0%", "--threshold"),
    of_flags("threshold of 5,000 digits", f"tune --threshold {'9' * 5000}", "--threshold"),
    of_flags("unknown part", "run --benchmark speed", "--benchmark: 'speed' is not one of"),
    of_flags("empty part", "run --benchmark comm,", "--benchmark: '' is not one of"),
    of_flags("warm-up below its least", "run --warmup 1", "--warmup"),
    of_flags("no iterations", "run --iters 0", "--iters"),
    of_flags("unknown collective", "comm --collective allreduce", "--collective", "all_reduce"),
    of_flags("smallest size above the largest", "comm --min-bytes 8M --max-bytes 1M", "bytes"),
    of_flags("factor of 1", "comm --step-factor 1", "--step-factor"),
    of_flags("rate in words", "comm --min-busbw fast", "--min-busbw", "fast"),
    of_flags("negative rate", "comm --min-busbw -1GB/s", "--min-busbw"),
    of_flags("infinite rate", "comm --min-busbw 1e999GB/s", "--min-busbw"),
    of_flags("memory in words", "memory --memory-limit lots", "--memory-limit: expected a size"),
    of_flags("no memory", "memory --memory-limit 0", "--memory-limit: must be at least"),
]

_NAMED_VALUES = [
    of_flags("variable without a value", "train --env NCCL_ALGO", "--env NCCL_ALGO: expected NAME=VALUE"),
    of_flags("variable without a name", "train --env =1", "--env", "not a valid name"),
    of_flags("variable with a blank", "train --env", "--env"),
    of_flags(
        "variable of the launcher",
        "train --env MASTER_PORT=1",
        "--env MASTER_PORT: MASTER_PORT cannot be given",
    ),
    of_flags("variable that begins with a digit", "train --env 1A=1", "'1A' is not a valid name"),
    of_flags("same variable twice", "train --env A=1 --env A=1", "the same value is given twice"),
    Case(
        name="variable with a line break",
        command=("train", "--env", "A\nB=1"),
        says=("--env", "not a valid name"),
    ),
    Case(
        name="variable with escape codes", command=("train", "--env", "\x1b[2J"), says=("--env", "\\x1b[2J")
    ),
    of_flags("link without a unit", "train --link 100", "--link: expected a rate such as 100mbit"),
    of_flags("link below its least", "train --link 1kbit", "--link: expected a rate"),
    of_flags("link beyond its most", "train --link 9999gbit", "--link: expected a rate"),
    of_flags("link of a rank without a rate", "train --link 0:1gbit,1", "--link: expected RANK:RATE"),
    of_flags(
        "link of a rank twice",
        "train --link 0:1gbit,0:1gbit",
        "--link: expected RANK:RATE for each rank once",
    ),
    of_flags("link of a rank in another script", "train --link ²:1gbit", "--link: expected RANK:RATE"),
    of_flags("link of a rank of 5,000 digits", f"train --link {'9' * 5000}:1gbit", "--link"),
    of_flags(
        "link without a rate for a rank",
        "train --device cpu --world-size 2 --link 0:1gbit",
        "has no rate for rank 1",
    ),
]

_COMMANDS = [
    of_flags("dashes without a command", "train --", "-- is for a training command, but none follows"),
    of_flags("command twice", "train --command x -- python t.py", "--command cannot be used with -- COMMAND"),
    of_flags(
        "command and workload",
        "train --workload mlp -- python t.py",
        "--workload cannot be used with a command",
    ),
    of_flags(
        "command and model setting",
        "train --hidden-dim 4 -- python t.py",
        "--hidden-dim cannot be used with a command",
    ),
    of_flags("command to memory", "memory -- python t.py", "memory cannot measure a command"),
    of_flags("command to comm", "comm -- python t.py", "comm cannot measure a command"),
    Case(
        name="command with an open quote",
        command=("train", "--command", "python 't.py"),
        says=("--command: No closing quotation",),
    ),
    Case(name="command of blanks", command=("train", "--command", "   "), says=("--command",)),
    Case(name="command of an empty word", command=("train", "--", ""), says=("command",)),
    Case(name="command with NUL", command=("train", "--", "python", "a\0b"), says=("COMMAND", "a\\x00b")),
    of_flags(
        "batch without a placeholder",
        "train --batch-size 4 -- python t.py",
        "--batch-size: write {batch_size} in the command",
    ),
    of_flags(
        "placeholder without a batch",
        "train -- python t.py {batch_size}",
        "the command has {batch_size}",
        "--batch-size",
    ),
    of_flags(
        "several world sizes without a placeholder",
        "scale --world-size 1,2 -- python t.py",
        "--world-size: several world sizes require {world_size}",
    ),
    of_flags(
        "vary without a placeholder",
        "train --vary lr=1,2 -- python t.py",
        "--vary lr: the command has no {lr}",
    ),
    of_flags("vary without a command", "train --vary lr=1,2", "--vary lr requires a training command"),
    of_flags("vary without values", "train --vary lr -- python t.py {lr}", "--vary lr: expected NAME=VALUE"),
    of_flags(
        "vary with an empty value",
        "train --vary lr=1, -- python t.py {lr}",
        "--vary lr: lr: expected a printable value",
    ),
    of_flags(
        "vary the same value twice",
        "train --vary lr=1,1 -- python t.py {lr}",
        "the same value is given twice",
    ),
    of_flags(
        "vary a known placeholder",
        "train --vary batch_size=1 -- python t.py {batch_size}",
        "{batch_size} is the value of --batch-size",
    ),
    of_flags("vary with a dash", "train --vary l-r=1 -- python t.py", "'l-r' is not a name of letters"),
    of_flags(
        "vary 10^5 combinations",
        "train "
        + " ".join(f"--vary {v}={','.join(map(str, range(100)))}" for v in "abc")
        + " -- t {a}{b}{c}",
        "1,000,000 combinations",
    ),
    of_flags("profile of a command", "train --profile -- python t.py", "--profile"),
]

_STORED = [
    of_flags("explain nothing", "explain", "there is no run under runs/"),
    of_flags("explain a run that is not there", "explain gone", "gone"),
    Case(name="explain a file", command=("explain", "f"), files={"f": "x"}, says=("f",)),
    of_flags("report a run that is not there", "report gone", "gone"),
    Case(name="unknown format", command=("report", "r", "--format", "docx"), files=_RUN, says=("docx",)),
    Case(name="empty format", command=("report", "r", "--format", ""), files=_RUN, says=("--format",)),
    Case(name="unknown width", command=("report", "r", "--width", "wide"), files=_RUN, says=("wide",)),
    Case(
        name="negative epochs",
        command=("report", "r", "--skip-epochs", "-1"),
        files=_RUN,
        says=("--skip-epochs",),
    ),
    Case(
        name="unknown setting to overlay",
        command=("report", "r", "--by", "stratgy"),
        files=_RUN,
        says=("--by", "stratgy"),
    ),
    Case(name="unknown data set", command=("report", "r", "--datasets", "imbd"), files=_RUN, says=("imbd",)),
    Case(
        name="report into a file",
        command=("report", "r", "--out", "f", "--format", "json"),
        files={**_RUN, "f": "x"},
        says=("f: could not be written",),
        code=ExitCode.STORAGE,
    ),
    of_flags("compare nothing", "compare", "BASE"),
    of_flags("compare one run", "compare r", "compare needs two runs"),
    of_flags("compare runs that are not there", "compare gone gone2", "gone"),
    of_flags("threshold of compare", "compare a b --threshold big", "--threshold: expected a share"),
    of_flags("threshold of nothing", "compare a b --threshold 0", "--threshold: expected a share"),
    of_flags("threshold above all", "compare a b --threshold 100%", "--threshold: expected a share"),
    of_flags(
        "threshold of 5,000 digits to compare",
        f"compare a b --threshold {'9' * 5000}",
        "--threshold: expected a share",
    ),
    of_flags(
        "budget without a measurement",
        "compare a b --budget 5m",
        "--budget is for --until-conclusive and --interleave",
    ),
    of_flags(
        "window of compare in words", "compare a b --interleave --window long", "--window: expected a time"
    ),
    of_flags(
        "both ways to measure",
        "compare a b --interleave --until-conclusive",
        "--interleave cannot be used with --until-conclusive",
    ),
    of_flags(
        "set without interleave",
        "compare a b --set precision=bf16",
        "--set is for --interleave with a single run",
    ),
    of_flags("three runs to interleave", "compare a b c --interleave", "--interleave is for two runs"),
    of_flags(
        "interleave on any hardware", "compare a b --interleave --any-hardware", "leave --any-hardware out"
    ),
    Case(
        name="set without a value",
        command=("compare", "r", "--interleave", "--set", "precision"),
        files=_RUN,
        says=("--set: expected NAME=VALUE",),
    ),
    of_flags("list a folder that is not there", "list gone", "list: gone: no such folder"),
    Case(name="list a file", command=("list", "f"), files={"f": "x"}, says=("list: f: is not a folder",)),
    of_flags("unknown status", "list --status done", "--status"),
    of_flags("since in words", "list --since yesterday", "--since: expected a time such as 12h"),
    of_flags("since for ever", f"list --since {'9' * 30}d", "--since: expected a time"),
    of_flags("since 5,000 digits", f"list --since {'9' * 5000}d", "--since: expected a time"),
    of_flags("since with a superscript", "list --since ²d", "--since: expected a time"),
    of_flags("limit of nothing", "list --limit 0", "--limit"),
    of_flags("limit in words", "list --limit few", "--limit"),
    of_flags("remove nothing", "rm", "RUN"),
    of_flags("remove a run that is not there", "rm gone --yes", "gone"),
    Case(
        name="remove a folder that is not a run",
        command=("rm", "d", "--yes"),
        files={"d/x": "x"},
        says=("d",),
    ),
    Case(name="remove a file", command=("rm", "f", "--yes"), files={"f": "x"}, says=("f",)),
    Case(name="remove without being asked", command=("rm", "r"), files=_RUN, says=("add --yes",), shows=True),
    of_flags("resume nothing", "resume", "RUN"),
    of_flags("resume a run that is not there", "resume gone", "gone"),
    Case(
        name="resume with no budget",
        command=("resume", "r", "--budget", "0s"),
        files=_RUN,
        says=("--budget",),
    ),
    Case(
        name="resume with launches in words",
        command=("resume", "r", "--repeats", "all"),
        files=_RUN,
        says=("--repeats",),
    ),
    of_flags("predict a run that is not there", "predict gone", "gone"),
    Case(
        name="predict ranks in words",
        command=("predict", "r", "--world-size", "two"),
        files=_RUN,
        says=("--world-size: expected numbers",),
    ),
    Case(
        name="predict no ranks",
        command=("predict", "r", "--world-size", "0"),
        files=_RUN,
        says=("--world-size: expected numbers",),
    ),
    Case(
        name="predict a superscript",
        command=("predict", "r", "--world-size", "²"),
        files=_RUN,
        says=("--world-size: expected numbers",),
    ),
    Case(
        name="predict 5,000 digits",
        command=("predict", "r", "--world-size", "9" * 5000),
        files=_RUN,
        says=("--world-size: expected numbers",),
    ),
    Case(
        name="unknown strategy to predict",
        command=("predict", "r", "--strategy", "dpd"),
        files=_RUN,
        says=("--strategy",),
    ),
    Case(
        name="cards without GPUs",
        command=("predict", "r", "--nics-per-node", "2"),
        files=_RUN,
        says=("--nics-per-node requires --gpus-per-node",),
    ),
    Case(
        name="price that is not a number",
        command=("predict", "r", "--gpu-hour-price", "nan"),
        files=_RUN,
        says=("--gpu-hour-price",),
    ),
    Case(
        name="infinite price",
        command=("predict", "r", "--gpu-hour-price", "inf"),
        files=_RUN,
        says=("--gpu-hour-price",),
    ),
    Case(
        name="bucket that is not a number",
        command=("predict", "r", "--bucket-cap-mb", "nan"),
        files=_RUN,
        says=("--bucket-cap-mb",),
    ),
    of_flags("ledger of a run", "predict r --ledger", "--ledger is about all runs"),
    of_flags("ranks to check in words", "check --world-size two", "--world-size"),
    of_flags("no ranks to check", "check --world-size 0", "--world-size"),
    of_flags("argument to check", "check now", "now"),
    of_flags("argument to schema", "schema trial", "trial"),
    of_flags("setting that is not there", "settings zzzzzz", "settings: nothing matches 'zzzzzz'"),
    of_flags("setting with escape codes", "settings \x1b[2J", "settings: nothing matches '\\x1b[2J'"),
    of_flags("unknown shell", "completion tcsh", "tcsh"),
    of_flags("slurm without a verb", "slurm lnt", "lnt"),
]

CASES = (*_MEASURING, *_NAMED_VALUES, *_COMMANDS, *_STORED)
