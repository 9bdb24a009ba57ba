"""Flags of every verb: unknown, of a wrong type, repeated, or contradicting each other."""

from scalescope.errors import ExitCode
from tests.bad_input.case import Case, StoredRun, of_command, of_flags

_RUN = {"r": StoredRun("train")}

_MEASURING = [
    of_flags("no such verb", "scael", "no such verb 'scael'; did you mean scale? (see scalescope --help)"),
    of_flags(
        "verb that resembles nothing", "xyzzy", "no such verb 'xyzzy'; known: run, train, scale, comm, "
    ),
    of_flags("flag before the verb", "--world-size 2 scale", "no such option --world-size"),
    of_flags(
        "unknown flag", "scale --wrold-size 2", "no such option --wrold-size; did you mean --world-size?"
    ),
    of_flags("unknown short flag", "scale -Q", "no such option -Q (see scalescope scale --help)"),
    of_flags("unknown flag before a verb", "--verison", "no such option --verison; did you mean --version?"),
    of_flags("unknown negative form", "train --no-static-grph", "did you mean --no-static-graph?"),
    of_flags("internal setting", "train --without-communication", "no such option --without-communication"),
    of_flags("flag without its value", "scale --world-size", "--world-size", "requires an argument"),
    of_flags("value for a switch", "train --amp=1", "--amp", "does not take a value"),
    of_flags("underscore in a flag", "train --batch_size 4", "did you mean --batch-size?"),
    of_flags("flag of another verb", "scale --profile", "no such option --profile"),
    of_flags("one value given twice", "train --repeats 2 --repeats 3", "--repeats takes one value"),
    Case(
        name="empty value",
        command=("scale", "--world-size", ""),
        says=("--world-size: expected a whole number, got ''",),
    ),
    Case(
        name="value with a line break",
        command=("train", "--backend", "x\nscalescope: ok"),
        says=("--backend:", "\\n"),
    ),
    Case(
        name="list of 100,000 values",
        command=("train", "--batch-size", "1," * 100_000 + "1"),
        says=("--batch-size: ",),
    ),
    of_flags("window and epochs", "train --window 2s --epochs 3", "--window cannot be used with --epochs"),
    of_flags(
        "window and steps",
        "train --window 2s --steps-per-epoch 30",
        "--window cannot be used with --steps-per-epoch",
    ),
    of_flags("unknown unit of time", "train --budget 3y", "--budget: expected a time such as 90s"),
    of_flags(
        "shortcut beside its setting", "train --amp --precision bf16", "--amp is the same as --precision"
    ),
    of_flags(
        "threads twice",
        "train --threads-per-rank 2 --env OMP_NUM_THREADS=1",
        "cannot be used with --env OMP_NUM_THREADS",
    ),
    of_flags(
        "launch number in words",
        "train --only-launch first",
        "expected a number from 0, or next, got 'first'",
    ),
    of_flags(
        "next for a plan",
        "train --only-launch next",
        "--only-launch: next cannot be used with train; it takes a number from 0",
    ),
    of_flags(
        "number for a search",
        "tune --only-launch 3",
        "--only-launch: 3 cannot be used with tune; it takes next",
    ),
    of_flags("launch number of 5,000 digits", f"train --only-launch {'9' * 5000}", "--only-launch"),
    of_flags("nothing to resume", "train --resume", "resume"),
    of_flags(
        "folder that is not there to resume",
        "train --device cpu --resume --output-dir gone",
        "gone has no run to continue",
    ),
    of_flags("ablation that is not there", "scale --waterfall=3", "--waterfall"),
    of_flags(
        "word near another",
        "train --steps-per-epoch al",
        "--steps-per-epoch: expected a whole number, auto or all, got 'al'; did you mean all?",
    ),
    of_flags("threads in words", "train --threads-per-rank x", "expected a whole number or auto, got 'x'"),
    of_flags("list for one value", "train --repeats 1,2", "--repeats: expected a whole number, got '1,2'"),
    of_flags("job of a verb without jobs", "run --launcher=slurm", "no such option --launcher"),
    of_flags("split beyond its ranks", "train --split-gpu 1", "--split-gpu: must be at least 2"),
    of_flags("verify loss too short", "tune --verify-loss 1", "--verify-loss"),
    of_flags(
        "profile steps without a profile", "train --profile-steps 3", "--profile-steps requires --profile"
    ),
    of_flags("ranks without a profile", "train --profile-ranks 0", "--profile-ranks requires --profile"),
    of_flags("ranges without a profile", "train --profile-ranges-only", "-ranges-only requires --profile"),
    of_flags("nsys without a profile", "train --nsys", "--nsys requires --profile"),
    of_flags("profile ranks in words", "train --profile --profile-ranks zero", "--profile-ranks"),
    of_flags(
        "profile ranks that are not there",
        "train --world-size 2 --profile --profile-ranks 7",
        "--profile-ranks 7: ",
        "ranks are 0 to 1",
    ),
    of_flags("profile of no steps", "train --profile --profile-steps 0", "--profile-steps"),
    of_flags("lever with a wrong value", "tune --levers precision=fp7", "fp7"),
    of_flags("empty lever", "tune --levers ,", "--levers"),
    of_flags("threshold in words", "tune --threshold small", "--threshold", "'small'"),
    of_flags("threshold of 0", "tune --threshold 0%", "--threshold"),
    of_flags("unknown part", "run --benchmark speed", "--benchmark: 'speed' is not one of"),
    of_flags("warm-up below its least", "run --warmup 1", "--warmup"),
    of_flags("no iterations", "run --iters 0", "--iters"),
    of_flags("smallest size above the largest", "comm --min-bytes 8M --max-bytes 1M", "bytes"),
    of_flags("factor of 1", "comm --step-factor 1", "--step-factor"),
    of_flags("rate in words", "comm --min-busbw fast", "--min-busbw", "fast"),
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
    of_flags("link below its least", "train --link 1kbit", "--link: expected a rate"),
]

_COMMANDS = [
    of_flags("dashes without a command", "train --", "-- must be followed by a training command"),
    of_flags("command twice", "train --command x -- python t.py", "--command cannot be used with -- COMMAND"),
    of_flags(
        "command and workload",
        "train --workload mlp -- python t.py",
        "--workload cannot be used with a command",
    ),
    of_flags(
        "command and model setting",
        "train --hidden-dim 4 -- python t.py",
        "--hidden-dim cannot be used with a command: the script decides",
    ),
    of_flags(
        "command to memory",
        "memory -- python t.py",
        "memory cannot measure a command; train, scale, tune and run can",
    ),
    of_flags("command to comm", "comm -- python t.py", "comm cannot measure a command"),
    Case(name="command of blanks", command=("train", "--command", "   "), says=("--command",)),
    Case(name="command of an empty word", command=("train", "--", ""), says=("command",)),
    Case(name="command with NUL", command=("train", "--", "python", "a\0b"), says=("COMMAND", "a\\x00b")),
    of_flags(
        "placeholder without a batch",
        "train -- python t.py {batch_size}",
        "the command has {batch_size}",
        "--batch-size",
    ),
    of_flags(
        "vary without a placeholder",
        "train --vary lr=1,2 -- python t.py",
        "--vary lr: the command has no {lr}",
    ),
    of_flags("vary without a command", "train --vary lr=1,2", "--vary lr requires a training command"),
    of_flags("vary without values", "train --vary lr -- python t.py {lr}", "--vary lr: expected NAME=VALUE"),
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
    of_flags("explain nothing", "explain", "no run exists under runs/"),
    of_command("explain a file", "explain f", "f", files={"f": "x"}),
    of_flags("report a run that is not there", "report gone", "gone"),
    of_command("unknown format", "report r --format docx", "docx", files=_RUN),
    Case(name="empty format", command=("report", "r", "--format", ""), files=_RUN, says=("--format",)),
    of_command("unknown width", "report r --width wide", "wide", files=_RUN),
    of_command("negative epochs", "report r --skip-epochs -1", "--skip-epochs", files=_RUN),
    of_command("unknown setting to overlay", "report r --by stratgy", "--by", "stratgy", files=_RUN),
    of_command("unknown data set", "report r --datasets imbd", "imbd", files=_RUN),
    of_command(
        "report into a file",
        "report r --out f --format json",
        "f: could not be written",
        files={**_RUN, "f": "x"},
        code=ExitCode.STORAGE,
    ),
    of_flags("compare nothing", "compare", "BASE"),
    of_flags("compare one run", "compare r", "compare requires two runs: BASE and NEW"),
    of_flags("threshold of compare", "compare a b --threshold big", "--threshold: expected a percentage"),
    of_flags("threshold of nothing", "compare a b --threshold 0", "--threshold: expected a percentage"),
    of_flags("threshold above all", "compare a b --threshold 100%", "--threshold: expected a percentage"),
    of_flags(
        "budget without a measurement",
        "compare a b --budget 5m",
        "--budget requires --interleave",
    ),
    of_flags(
        "window of compare in words", "compare a b --interleave --window long", "--window: expected a time"
    ),
    of_flags(
        "set without interleave",
        "compare a b --set precision=bf16",
        "--set requires --interleave and a single run",
    ),
    of_flags(
        "three runs to interleave", "compare a b c --interleave", "--interleave requires exactly two runs"
    ),
    of_flags(
        "interleave on any hardware",
        "compare a b --interleave --any-hardware",
        "--interleave measures on this machine",
        "cannot be used with --any-hardware",
    ),
    of_command(
        "set without a value",
        "compare r --interleave --set precision",
        "--set: expected NAME=VALUE",
        files=_RUN,
    ),
    of_flags("list a folder that is not there", "list gone", "list: gone: no such folder"),
    of_command("list a file", "list f", "list: f: is not a folder", files={"f": "x"}),
    of_flags("unknown status", "list --status done", "--status"),
    of_flags("since in words", "list --since yesterday", "--since: expected a time such as 12h"),
    of_flags("since for ever", f"list --since {'9' * 30}d", "--since: expected a time"),
    of_flags("since without a unit", "list --since 3", "--since: expected a time such as 12h"),
    of_flags("since with a superscript", "list --since ²d", "--since: expected a time"),
    of_flags("limit of nothing", "list --limit 0", "--limit"),
    of_flags("remove nothing", "rm", "RUN"),
    of_flags("resume nothing", "resume", "RUN"),
    of_flags("resume a run that is not there", "resume gone", "gone"),
    of_command("resume with no budget", "resume r --budget 0s", "--budget", files=_RUN),
    of_flags("predict a run that is not there", "predict gone", "gone"),
    of_command(
        "predict ranks in words", "predict r --world-size two", "--world-size: expected numbers", files=_RUN
    ),
    of_command("unknown strategy to predict", "predict r --strategy dpd", "--strategy", files=_RUN),
    of_command(
        "price that is not a number", "predict r --gpu-hour-price nan", "--gpu-hour-price", files=_RUN
    ),
    of_command("bucket that is not a number", "predict r --bucket-cap-mb nan", "--bucket-cap-mb", files=_RUN),
    of_flags("ledger of a run", "predict r --ledger", "--ledger shows all runs"),
    of_flags("ranks to check in words", "check --world-size two", "--world-size"),
    of_flags("argument to check", "check now", "now"),
    of_flags("setting that is not there", "settings zzzzzz", "settings: nothing matches 'zzzzzz'"),
    of_flags("unknown shell", "completion tcsh", "tcsh"),
    of_flags("slurm without a verb", "slurm lnt", "lnt"),
]

CASES = (*_MEASURING, *_NAMED_VALUES, *_COMMANDS, *_STORED)
