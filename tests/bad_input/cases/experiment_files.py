"""Experiment files: broken YAML, unknown keys, values that no setting has."""

from tests.bad_input.case import FILE, Case, Fifo, Folder, Link, Unreadable, of_command, of_file


def _numbers(most: int) -> str:
    return ", ".join(map(str, range(1, most + 1)))


_BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

_YAML = [
    of_file("unclosed bracket", "world_size: [1, 2\n", f"{FILE}:2: not valid YAML"),
    of_file("only comments", "# nothing\n\n", f"{FILE}: the file is empty"),
    of_file("not UTF-8", b"name: caf\xe9\n", f"{FILE}: not UTF-8 text (byte 9)"),
    of_file("lone surrogate", 'name: "\\ud800"\n', f"{FILE}:1: name: expected a printable word"),
    of_file(
        "python object", "name: !!python/object/apply:os.system ['id']\n", f"{FILE}:1: tags", "not allowed"
    ),
    of_file("string tag", "name: !!str x\n", f"{FILE}:1: tags", "not allowed"),
    of_file("alias bomb", _BOMB, f"{FILE}:1: anchors and aliases are not allowed"),
    of_file("nested 5,000 deep, lines", "".join(" " * n + "a:\n" for n in range(800)), f"{FILE}:1:"),
    of_file(
        "duplicate key",
        "batch_size: 4\nepochs: 2\nbatch_size: 8\n",
        f"{FILE}:3: batch_size: given twice",
        f"{FILE}:1",
    ),
    of_file(
        "alias of a setting beside it",
        "world_size: 1\nnproc_per_node: 1\n",
        f"{FILE}:2: nproc_per_node: is another name for world_size",
    ),
]

_KEYS = [
    of_file("unknown key", "batchsize: 4\n", f"{FILE}:1: unknown key batchsize; did you mean batch_size?"),
    of_file("internal setting", "among: one_node\n", f"{FILE}:1: unknown key among"),
    of_file("key of another verb", "levers: all\n", f"{FILE}:1: unknown key levers"),
    of_file("switch of the command line", "dry_run: true\n", f"{FILE}:1: unknown key dry_run"),
    of_file("setting of another strategy", "strategy: ddp\nmicro_batches: 4\n", "micro_batches"),
    of_file("setting of another workload", "workload: mlp\nmax_length: 4\n", "max_length"),
]

_VALUES = [
    of_file(
        "word for a number", "batch_size: many\n", f"{FILE}:1: batch_size: expected a whole number", "'many'"
    ),
    of_file("superscript digit", "batch_size: ²\n", f"{FILE}:1: batch_size: expected a whole number"),
    of_file("no batch", "batch_size: null\n", f"{FILE}:1: batch_size", "positive integer"),
    of_file("5,000 digits", "batch_size: " + "9" * 5000 + "\n", f"{FILE}:1: batch_size"),
    of_file("octal number", "batch_size: 0777\n", "batch_size: expected a whole number, got '0777'"),
    of_file("not a number", "lr: .nan\n", f"{FILE}:1: lr: expected a finite number, got '.nan'"),
    of_file("zero batch", "batch_size: 0\n", f"{FILE}:1: batch_size: must be at least 1, got 0"),
    of_file("batch of 10^18", "batch_size: 1e18\n", "batch_size: must be at most 2147483648, got 1e+18"),
    of_file("zero ranks", "world_size: [1, 0]\n", f"{FILE}:1: world_size: must be at least 1, got 0"),
    of_file("a million ranks", "world_size: 1000000\n", "world_size: must be at most 65536, got 1000000"),
    of_file("zero steps", "steps_per_epoch: 0\n", f"{FILE}:1: steps_per_epoch: must be at least 1, got 0"),
    of_file("zero epochs", "epochs: 0\n", f"{FILE}:1: epochs: must be at least 1"),
    of_file("negative learning rate", "lr: -0.1\n", f"{FILE}:1: lr: must be at least"),
    of_file("negative seed", "seed: -1\n", f"{FILE}:1: seed: must be at least 0"),
    of_file("no launches", "repeats: 0\n", f"{FILE}:1: repeats: must be at least 1"),
    of_file(
        "warm-up as long as the steps", "steps_per_epoch: 10\nepochs: 1\nwarmup_steps: 10\n", "warmup_steps"
    ),
    of_file("warm-up below its least", "warmup_steps: 0\n", f"{FILE}:1: warmup_steps: must be at least"),
    of_file(
        "unknown backend",
        "backend: ncll\n",
        f"{FILE}:1: backend: must be one of gloo, nccl, auto",
        "did you mean nccl?",
    ),
    of_file("unknown strategy", "strategy: dpd\n", f"{FILE}:1: strategy", "ddp"),
    of_file("unknown workload", "workload: transfomer\n", f"{FILE}:1: workload", "transformer"),
    of_file("unknown data", "data: imbd\n", f"{FILE}:1: data", "imdb"),
    of_file("word for a switch", "amp: maybe\n", f"{FILE}:1: amp: expected true or false, got 'maybe'"),
    of_file(
        "short form beside its setting", "amp: true\nprecision: fp16\n", f"{FILE}:1: amp: is another name"
    ),
    of_file(
        "no steps", "profile: true\nprofile_steps: 0\n", f"{FILE}:2: profile_steps: 0 is not in the range"
    ),
    of_file("list for one value", "repeats: [1, 2]\n", f"{FILE}:1: repeats: expected one value, got 2"),
    of_file(
        "both batches", "batch_size: 4\nglobal_batch_size: 8\n", f"{FILE}:2: global_batch_size", "not both"
    ),
    of_file("time of 1e999", "budget: 1e999h\n", f"{FILE}:1: budget: expected a time such as 90s"),
    of_file(
        "size with a fraction",
        "max_bytes: 1.5M\n",
        f"{FILE}:1: max_bytes: expected a size such as",
        verb="comm",
    ),
    of_file(
        "size of 30 digits",
        "max_bytes: " + "9" * 30 + "T\n",
        f"{FILE}:1: max_bytes: must be at most",
        verb="comm",
    ),
    of_file(
        "unknown collective", "collective: allreduce\n", f"{FILE}:1: collective", "all_reduce", verb="comm"
    ),
    of_file("launcher variable", "env: {RANK: 3}\n", f"{FILE}:1: env.RANK: RANK cannot be given"),
    of_file("variable with NUL", 'env: {A: "x\\0y"}\n', f"{FILE}:1: env.A: A: a value cannot contain a NUL"),
    of_file(
        "vary without a command", "vary: {lr: [1, 2]}\n", f"{FILE}:1: vary.lr requires a training command"
    ),
    of_file(
        "10^8 variables",
        "env:\n" + "".join(f"  V{n}: [{', '.join(map(str, range(10)))}]\n" for n in range(8)),
        f"{FILE}:2: env.V0: the env lists combine to 100,000,000",
    ),
    of_file(
        "more than 10,000 trials",
        f"batch_size: [{_numbers(201)}]\nhidden_dim: [{_numbers(51)}]\n",
        "--yes",
        "10,251",
    ),
    of_file("name with a slash", "name: ../x\n", f"{FILE}:1: name: expected 1 to 64 letters"),
    of_file("own flag of a wrong type", "verify_loss: soon\n", f"{FILE}:1: verify_loss", verb="tune"),
]

_PATHS = [
    of_command("path: missing", "train gone.yaml", "gone.yaml: No such file"),
    Case(
        name="path: unreadable",
        command=("train", FILE),
        files={FILE: Unreadable()},
        says=(f"{FILE}: Permission denied",),
    ),
    Case(
        name="path: folder",
        command=("train", FILE),
        files={FILE: Folder()},
        says=(f"{FILE}: not a regular file",),
    ),
    Case(
        name="path: fifo",
        command=("train", FILE),
        files={FILE: Fifo()},
        says=(f"{FILE}: not a regular file",),
    ),
    of_command("path: device", "train /dev/zero", "/dev/zero: not a regular file"),
    Case(
        name="path: link to itself",
        command=("train", FILE),
        files={FILE: Link(FILE)},
        says=(f"{FILE}: Too many levels",),
    ),
    Case(name="path: name of 300 letters", command=("train", "n" * 300), says=("File name too long",)),
    Case(name="path: empty name", command=("train", ""), says=(".: not a regular file",)),
    Case(
        name="path: name with escape codes",
        command=("train", "\x1b[31mgone.yaml"),
        says=("\\x1b[31mgone.yaml: No such file",),
    ),
    Case(
        name="path: two files", command=("train", FILE, "f.yaml"), files={FILE: "name: x\n"}, says=("f.yaml",)
    ),
    of_command("path: memory of the process", "train /proc/self/mem", "/proc/self/mem: "),
]

CASES = (*_YAML, *_KEYS, *_VALUES, *_PATHS)
