"""Experiment files: broken YAML, unknown keys, values that no setting has."""

from tests.bad_input.case import FILE, Case, Fifo, Folder, Link, Unreadable, of_file


def _numbers(most: int) -> str:
    return ", ".join(map(str, range(1, most + 1)))


_BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

_YAML = [
    of_file("unclosed bracket", "world_size: [1, 2\n", f"{FILE}:2: not valid YAML"),
    of_file("unclosed quote", 'name: "x\n', f"{FILE}:", "not valid YAML"),
    of_file("two colons", "batch_size: 4: 5\n", f"{FILE}:1: not valid YAML"),
    of_file("tab indent", "training:\n\tbatch_size: 4\n", f"{FILE}:2: not valid YAML"),
    of_file("empty", "", f"{FILE}: the file is empty"),
    of_file("only comments", "# nothing\n\n", f"{FILE}: the file is empty"),
    of_file("empty mapping", "{}\n", f"{FILE}: the file contains no settings"),
    of_file("scalar", "hello\n", f"{FILE}:1: expected 'key: value' lines"),
    of_file("number", "42\n", f"{FILE}:1: expected 'key: value' lines"),
    of_file("list", "- batch_size\n- 4\n", f"{FILE}:1: expected 'key: value' lines"),
    of_file("null", "~\n", f"{FILE}:1: expected 'key: value' lines"),
    of_file("not UTF-8", b"name: caf\xe9\n", f"{FILE}: not UTF-8 text (byte 9)"),
    of_file("UTF-16", "batch_size: 4\n".encode("utf-16"), f"{FILE}: not UTF-8 text"),
    of_file(
        "byte order mark and a wrong key",
        b"\xef\xbb\xbfbatchsize: 4\n",
        f"{FILE}:1: unknown key",
        "batch_size",
    ),
    of_file("NUL character", "name: a\0b\n", f"{FILE}: not valid YAML"),
    of_file("escape character", "name: \x1b[31mred\n", f"{FILE}: not valid YAML"),
    of_file("character beyond Unicode", 'name: "\\U00110000"\n', f"{FILE}", "not valid YAML"),
    of_file("lone surrogate", 'name: "\\ud800"\n', f"{FILE}:1: name: expected a printable word"),
    of_file("binary data", bytes(range(256)), f"{FILE}: not UTF-8 text"),
    of_file("pickle", b"\x80\x04\x95\x0b\x00\x00\x00", f"{FILE}: not UTF-8 text"),
    of_file(
        "python object", "name: !!python/object/apply:os.system ['id']\n", f"{FILE}:1: tags", "not allowed"
    ),
    of_file("python name", "!!python/name:os.system\n", f"{FILE}:1: tags", "not allowed"),
    of_file("string tag", "name: !!str x\n", f"{FILE}:1: tags", "not allowed"),
    of_file("own tag", "name: !secret x\n", f"{FILE}:1: tags", "not allowed"),
    of_file("alias bomb", _BOMB, f"{FILE}:1: anchors and aliases are not allowed"),
    of_file("anchor without an alias", "name: &n x\n", f"{FILE}:1: anchors and aliases"),
    of_file("undefined alias", "name: *n\n", f"{FILE}:1: anchors and aliases"),
    of_file("merge key", "<<: {batch_size: 4}\n", f"{FILE}:1: <<: only model, training, data"),
    of_file("nested 5,000 deep, flow", "a: " + "[" * 5000 + "]" * 5000 + "\n", f"{FILE}:1:"),
    of_file("nested 5,000 deep, mappings", "{a: " * 5000 + "}" * 5000 + "\n", f"{FILE}:1:"),
    of_file("nested 5,000 deep, lines", "".join(" " * n + "a:\n" for n in range(800)), f"{FILE}:1:"),
    of_file("list in a list", "batch_size: [[1, 2], 3]\n", f"{FILE}:1: batch_size: a list may contain plain"),
    of_file("mapping in a list", "batch_size: [{a: 1}]\n", f"{FILE}:1: batch_size: a list may contain plain"),
    of_file(
        "group in a group", "model:\n  training:\n    batch_size: 4\n", f"{FILE}:2: training: only model"
    ),
    of_file("group with a value", "training: 4\n", f"{FILE}:1: training: expected 'key: value' lines below"),
    of_file("list as a key", "[a, b]: 4\n", f"{FILE}:1: expected a plain word as key"),
    of_file("two documents", "batch_size: 4\n---\nbatch_size: 8\n", f"{FILE}:2: expected one YAML document"),
    of_file(
        "duplicate key",
        "batch_size: 4\nepochs: 2\nbatch_size: 8\n",
        f"{FILE}:3: batch_size: given twice",
        f"{FILE}:1",
    ),
    of_file(
        "duplicate key in a group",
        "training: {batch_size: 4}\nbatch_size: 8\n",
        f"{FILE}:2: batch_size: given twice",
    ),
    of_file(
        "duplicate group",
        "training: {epochs: 2}\ntraining: {batch_size: 8}\n",
        f"{FILE}:2: training: given twice",
    ),
    of_file("duplicate variable", "env:\n  A: x\n  A: y\n", f"{FILE}:3: A: given twice"),
    of_file(
        "alias of a setting beside it",
        "world_size: 1\nnproc_per_node: 1\n",
        f"{FILE}:2: nproc_per_node: is another name for world_size",
    ),
    of_file("key without a value", "batch_size:\n", f"{FILE}:1: batch_size: has no value"),
    of_file(
        "larger than a megabyte",
        "# " + "x" * (1 << 20) + "\nbatch_size: 4\n",
        f"{FILE}: an experiment file has at most",
    ),
]

_KEYS = [
    of_file("unknown key", "batchsize: 4\n", f"{FILE}:1: unknown key batchsize; did you mean batch_size?"),
    of_file(
        "unknown key in a group",
        "training:\n  epocs: 3\n",
        f"{FILE}:2: unknown key epocs; did you mean epochs?",
    ),
    of_file(
        "key with a dash", "batch-size: 4\n", f"{FILE}:1: unknown key batch-size; did you mean batch_size?"
    ),
    of_file(
        "key in capitals", "World_Size: 2\n", f"{FILE}:1: unknown key World_Size; did you mean world_size?"
    ),
    of_file("key that resembles nothing", "zzzzzz: 4\n", f"{FILE}:1: unknown key zzzzzz"),
    of_file("empty key", '"": 4\n', f"{FILE}:1: unknown key ''"),
    of_file("key with escape codes", '"\\e[31m\\e]0;x\\a": 4\n', f"{FILE}:1: unknown key '\\x1b[31m"),
    of_file("key with a line break", '"a\\nscalescope: ok": 4\n', f"{FILE}:1: unknown key 'a\\n"),
    of_file("key that overrides direction", '"\\u202egnp.exe": 4\n', f"{FILE}:1: unknown key '\\u202e"),
    of_file("key of 5,000 letters", "k" * 5000 + ": 4\n", f"{FILE}:1:"),
    of_file("internal setting", "among: one_node\n", f"{FILE}:1: unknown key among"),
    of_file("number as a key", "1: 4\n", f"{FILE}:1: unknown key 1"),
    of_file("true as a key", "true: 4\n", f"{FILE}:1: unknown key true"),
    of_file("switch of the command line", "dry_run: true\n", f"{FILE}:1: unknown key dry_run"),
    of_file("resume in a file", "resume: true\n", f"{FILE}:1: unknown key resume"),
    of_file("setting of another strategy", "strategy: ddp\nmicro_batches: 4\n", "micro_batches"),
    of_file("setting of another workload", "workload: mlp\nmax_length: 4\n", "max_length"),
]

_VALUES = [
    of_file(
        "word for a number", "batch_size: many\n", f"{FILE}:1: batch_size: expected a whole number", "'many'"
    ),
    of_file(
        "fraction for a whole number", "batch_size: 4.5\n", f"{FILE}:1: batch_size: expected a whole number"
    ),
    of_file("fraction by exponent", "batch_size: 15e-1\n", f"{FILE}:1: batch_size: expected a whole number"),
    of_file(
        "number with a separator", "batch_size: 1_000\n", f"{FILE}:1: batch_size: expected a whole number"
    ),
    of_file("number with a comma", 'batch_size: "1,000"\n', f"{FILE}:1: batch_size: expected a whole number"),
    of_file("number with a unit", "batch_size: 4k\n", f"{FILE}:1: batch_size: expected a whole number"),
    of_file("no for a number", "world_size: no\n", f"{FILE}:1: world_size: expected a whole number", "'no'"),
    of_file(
        "true for a number", "world_size: true\n", f"{FILE}:1: world_size: expected a whole number", "'true'"
    ),
    of_file("octal number", "batch_size: 0777\n", f"{FILE}:1: batch_size: expected a whole number", "'0777'"),
    of_file(
        "hexadecimal number", "batch_size: 0x10\n", f"{FILE}:1: batch_size: expected a whole number", "'0x10'"
    ),
    of_file(
        "sexagesimal number", "batch_size: 1:30\n", f"{FILE}:1: batch_size: expected a whole number", "'1:30'"
    ),
    of_file("digits of another script", "batch_size: ٤\n", f"{FILE}:1: batch_size: expected a whole number"),
    of_file("superscript digit", "batch_size: ²\n", f"{FILE}:1: batch_size: expected a whole number"),
    of_file("null for a number", "hidden_dim: null\n", f"{FILE}:1: hidden_dim"),
    of_file("no batch", "batch_size: null\n", f"{FILE}:1: batch_size", "positive integer"),
    of_file("not a number", "lr: .nan\n", f"{FILE}:1: lr: expected a finite number"),
    of_file("nan", "lr: nan\n", f"{FILE}:1: lr: expected a finite number"),
    of_file("infinite", "lr: .inf\n", f"{FILE}:1: lr: expected a finite number"),
    of_file("minus infinite", "lr: -.inf\n", f"{FILE}:1: lr: expected a finite number"),
    of_file("beyond floats", "lr: 1e999\n", f"{FILE}:1: lr: expected a finite number"),
    of_file("integer beyond floats", "batch_size: 1e999\n", f"{FILE}:1: batch_size: expected a whole number"),
    of_file("5,000 digits", "batch_size: " + "9" * 5000 + "\n", f"{FILE}:1: batch_size"),
    of_file("value of 5,000 letters", "name: " + "n" * 5000 + "\n", f"{FILE}:1: name: a value has at most"),
    of_file("negative batch", "batch_size: -4\n", f"{FILE}:1: batch_size: must be at least 1, got -4"),
    of_file("zero batch", "batch_size: 0\n", f"{FILE}:1: batch_size: must be at least 1, got 0"),
    of_file("zero ranks", "world_size: 0\n", f"{FILE}:1: world_size: must be at least 1, got 0"),
    of_file("negative ranks", "world_size: -2\n", f"{FILE}:1: world_size: must be at least 1"),
    of_file("zero steps", "steps_per_epoch: 0\n", f"{FILE}:1: steps_per_epoch: must be at least 1"),
    of_file("zero epochs", "epochs: 0\n", f"{FILE}:1: epochs: must be at least 1"),
    of_file("negative learning rate", "lr: -0.1\n", f"{FILE}:1: lr: must be at least"),
    of_file("negative seed", "seed: -1\n", f"{FILE}:1: seed: must be at least 0"),
    of_file("no launches", "repeats: 0\n", f"{FILE}:1: repeats: must be at least 1"),
    of_file("a million ranks", "world_size: 1000000\n", f"{FILE}:1: world_size: must be at most 65536"),
    of_file("batch of 10^18", "batch_size: 1e18\n", f"{FILE}:1: batch_size: must be at most"),
    of_file(
        "warm-up as long as the steps", "steps_per_epoch: 10\nepochs: 1\nwarmup_steps: 10\n", "warmup_steps"
    ),
    of_file("warm-up below its least", "warmup_steps: 0\n", f"{FILE}:1: warmup_steps: must be at least"),
    of_file("empty list", "batch_size: []\n", f"{FILE}:1: batch_size: the list is empty"),
    of_file("list with a gap", "batch_size: [1, , 2]\n", f"{FILE}:1"),
    of_file("list with an empty line", "batch_size:\n  - 4\n  -\n", f"{FILE}:3: batch_size: has no value"),
    of_file("duplicate values", "world_size: [1, 2, 1]\n", f"{FILE}:1: world_size: 1 is given twice"),
    of_file(
        "duplicate values, written differently",
        "batch_size: [1000, 1e3]\n",
        f"{FILE}:1: batch_size: 1000 is given twice",
    ),
    of_file(
        "unknown backend",
        "backend: ncll\n",
        f"{FILE}:1: backend: must be one of gloo, nccl, auto",
        "did you mean nccl?",
    ),
    of_file("unknown strategy", "strategy: dpd\n", f"{FILE}:1: strategy", "ddp"),
    of_file("unknown workload", "workload: transfomer\n", f"{FILE}:1: workload", "transformer"),
    of_file("unknown data", "data: imbd\n", f"{FILE}:1: data", "imdb"),
    of_file("unknown precision", "precision: fp8x\n", f"{FILE}:1: precision: must be one of"),
    of_file("number for a switch", "oversubscribe: 1\n", f"{FILE}:1: oversubscribe: expected true or false"),
    of_file("word for a switch", "amp: maybe\n", f"{FILE}:1: amp: expected true or false"),
    of_file("list for one value", "repeats: [1, 2]\n", f"{FILE}:1: repeats: expected one value, got 2"),
    of_file(
        "both batches", "batch_size: 4\nglobal_batch_size: 8\n", f"{FILE}:2: global_batch_size", "not both"
    ),
    of_file("time without a number", "budget: soon\n", f"{FILE}:1: budget: expected a time such as 90s"),
    of_file("negative time", "budget: -5m\n", f"{FILE}:1: budget: expected a time such as 90s"),
    of_file("infinite time", "budget: inf\n", f"{FILE}:1: budget: expected a time such as 90s"),
    of_file("time of 1e999", "budget: 1e999h\n", f"{FILE}:1: budget: expected a time such as 90s"),
    of_file("time in days", "budget: 2 days\n", f"{FILE}:1: budget: expected a time such as 90s"),
    of_file("time of nothing", "budget: 0s\n", f"{FILE}:1: budget: must be at least 1"),
    of_file(
        "size in letters", "max_bytes: huge\n", f"{FILE}:1: max_bytes: expected a size such as", verb="comm"
    ),
    of_file(
        "negative size", "max_bytes: -1M\n", f"{FILE}:1: max_bytes: expected a size such as", verb="comm"
    ),
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
    of_file("link without a unit", "link: 100\n", f"{FILE}:1: link: expected a rate such as 100mbit"),
    of_file("launcher variable", "env: {RANK: 3}\n", f"{FILE}:1: env.RANK: RANK cannot be given"),
    of_file(
        "variable with a dash", "env: {NCCL-ALGO: Ring}\n", f"{FILE}:1: env.NCCL-ALGO", "not a valid name"
    ),
    of_file("variable with NUL", 'env: {A: "x\\0y"}\n', f"{FILE}:1: env.A: A: a value cannot contain a NUL"),
    of_file(
        "vary without a command", "vary: {lr: [1, 2]}\n", f"{FILE}:1: vary.lr requires a training command"
    ),
    of_file(
        "10^8 variables",
        "env:\n" + "".join(f"  V{n}: [{', '.join(map(str, range(10)))}]\n" for n in range(8)),
        f"{FILE}:2: env.V0: the env lists multiply to 100,000,000",
    ),
    of_file(
        "more than 10,000 trials",
        f"batch_size: [{_numbers(201)}]\nhidden_dim: [{_numbers(51)}]\n",
        "--yes",
        "10,251",
    ),
    of_file("name with a slash", "name: ../x\n", f"{FILE}:1: name: expected 1 to 64 letters"),
    of_file("profile steps of a word", "profile: true\nprofile_steps: many\n", f"{FILE}:2: profile_steps"),
    of_file("own flag of a wrong type", "verify_loss: soon\n", f"{FILE}:1: verify_loss", verb="tune"),
]

_PATHS = [
    Case(name="path: missing", command=("train", "gone.yaml"), says=("gone.yaml: No such file",)),
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
    Case(name="path: device", command=("train", "/dev/zero"), says=("/dev/zero: not a regular file",)),
    Case(
        name="path: link to a device",
        command=("train", FILE),
        files={FILE: Link("/dev/zero")},
        says=(f"{FILE}: not a regular file",),
    ),
    Case(
        name="path: link to itself",
        command=("train", FILE),
        files={FILE: Link(FILE)},
        says=(f"{FILE}: Too many levels",),
    ),
    Case(
        name="path: dangling link",
        command=("train", FILE),
        files={FILE: Link("gone")},
        says=(f"{FILE}: No such file",),
    ),
    Case(
        name="path: file as a folder",
        command=("train", f"{FILE}/x.yaml"),
        files={FILE: "name: x\n"},
        says=(f"{FILE}/x.yaml: Not a directory",),
    ),
    Case(name="path: name of 300 letters", command=("train", "n" * 300), says=("File name too long",)),
    Case(name="path: empty name", command=("train", ""), says=(".: not a regular file",)),
    Case(
        name="path: name with escape codes",
        command=("train", "\x1b[31mgone.yaml"),
        says=("\\x1b[31mgone.yaml: No such file",),
    ),
    Case(
        name="path: name with a line break",
        command=("train", "gone\nscalescope: ok"),
        says=("gone\\nscalescope: ok: No such file",),
    ),
    Case(
        name="path: two files", command=("train", FILE, "f.yaml"), files={FILE: "name: x\n"}, says=("f.yaml",)
    ),
    Case(name="path: memory of the process", command=("train", "/proc/self/mem"), says=("/proc/self/mem: ",)),
]

CASES = (*_YAML, *_KEYS, *_VALUES, *_PATHS)
