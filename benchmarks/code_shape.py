"""Figures about the source tree: names, settings read by key, sentences that are parsed, folders, functions.

    python benchmarks/code_shape.py [--against FOLDER_OR_REVISION] [-v]

Reads src/scalescope as syntax trees; nothing is imported or run. With --against, every figure is shown for
another folder or git revision too. The file has the limits, and tests/unit/test_code_shape.py holds them.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {
    "filler identifiers": 0,
    "settings read by key": 20,
    "unexplained parsing of text": 0,
    "files in the largest folder": 15,
    "functions with more than 7 parameters": 2,
    "class names used twice": 0,
}
FILLERS = {"one", "found", "told", "said", "seen", "heard", "beside", "own", "place", "looks"}
SETTINGS_OWNERS = ("experiment", "catalog", "worker")
# One file for each thing of a kind: these folders grow with what scalescope offers.
DISCOVERED = {
    *("verbs", "rules", "run_rules", "levers", "chapters", "workloads", "strategies", "collectives", "data"),
    *("step_rules", "benchmarks", "validity", "simulated"),
}
MOST_PARAMETERS = 7
STRING_METHODS = {
    *("partition", "rpartition", "split", "rsplit", "splitlines", "startswith", "endswith"),
    *("removeprefix", "removesuffix"),
}
RE_FUNCTIONS = {"compile", "match", "search", "fullmatch", "findall", "finditer", "split", "sub"}

# Why a piece of text is taken apart: of a whole file or folder, or of single functions of a file.
OTHER_PROGRAM = "output or files of another program or of the kernel"
USER_SYNTAX = "what a user writes: a flag, a file or a name"
OLD_FORMAT = "files of earlier versions"
LAYOUT = "layout of text that is drawn: blanks, lines, markup"
KEY = "a key with a fixed form that scalescope writes, such as pair/0-1/1024"
NAME = "the name of a file, module, operation or version"
PROTOCOL = "bytes of a stream, cut into lines"
FOREIGN_ERROR = "the first line of an exception of torch, YAML or the system"
FILES = {
    "api": USER_SYNTAX,
    "analysis/checks": OTHER_PROGRAM,
    "analysis/comm/nccl_log.py": OTHER_PROGRAM,
    "catalog/benchmarks/comm.py": USER_SYNTAX,
    "catalog/benchmarks/profile.py": USER_SYNTAX,
    "catalog/link.py": USER_SYNTAX,
    "catalog/setting.py": USER_SYNTAX,
    "catalog/workloads/custom.py": USER_SYNTAX,
    "cli/app.py": USER_SYNTAX,
    "cli/flag_search.py": USER_SYNTAX,
    "cli/options.py": USER_SYNTAX,
    "cli/verbs": USER_SYNTAX,
    "cores.py": OTHER_PROGRAM,
    "experiment/command_line.py": USER_SYNTAX,
    "experiment/experiment.py": USER_SYNTAX,
    "experiment/same_job.py": USER_SYNTAX,
    "experiment/yaml_file.py": USER_SYNTAX,
    "host_memory.py": OTHER_PROGRAM,
    "inspection.py": OTHER_PROGRAM,
    "launch/attached/rank_context.py": OTHER_PROGRAM,
    "launch/local/command": OTHER_PROGRAM,
    "launch/local/guard.py": OTHER_PROGRAM,
    "launch/local/leftovers.py": OTHER_PROGRAM,
    "launch/local/network.py": OTHER_PROGRAM,
    "launch/local/outlook.py": OTHER_PROGRAM,
    "launch/local/split_gpu.py": OTHER_PROGRAM,
    "launch/memory_kills.py": OTHER_PROGRAM,
    "launch/slurm": OTHER_PROGRAM,
    "launch/telemetry": OTHER_PROGRAM,
    "launch/topology.py": OTHER_PROGRAM,
    "link_matrix.py": OTHER_PROGRAM,
    "report/comm/nccl_tests.py": OTHER_PROGRAM,
    "report/render": LAYOUT,
    "results/ranks/stray_files.py": NAME,
    "results/old_formats.py": OLD_FORMAT,
    "results/traces/events.py": OTHER_PROGRAM,
    "results/traces/host_calls.py": OTHER_PROGRAM,
    "results/traces/kernel_names.py": OTHER_PROGRAM,
    "secret_variables.py": USER_SYNTAX,
    "studies/flags.py": USER_SYNTAX,
    "attach.py": USER_SYNTAX,
    "worker/attach/inputs.py": OTHER_PROGRAM,
    "worker/attach/session.py": USER_SYNTAX,
    "worker/machine/capabilities.py": OTHER_PROGRAM,
    "worker/machine/probe.py": OTHER_PROGRAM,
    "worker/process/node_evidence.py": OTHER_PROGRAM,
    "worker/process/health/out_of_memory.py": OTHER_PROGRAM,
    "worker/memory/resident_memory.py": OTHER_PROGRAM,
    "worker/process/faults.py": USER_SYNTAX,
    "worker/text": OTHER_PROGRAM,
    "worker/workloads/custom.py": USER_SYNTAX,
}
FUNCTIONS = {
    ("analysis/collectives.py", "collective_rows"): KEY,
    ("analysis/collectives.py", "_row"): KEY,
    ("analysis/comm/expected.py", "nvlinks_of"): OTHER_PROGRAM,
    ("analysis/comm/link_ends.py", "_device_number"): OTHER_PROGRAM,
    ("analysis/comm/pairs.py", "pair_rows"): KEY,
    ("analysis/comm/pairs.py", "_has_pairs"): KEY,
    ("analysis/commands/script_facts.py", "_suppressed"): KEY,
    ("analysis/memory/forecast.py", "forecast_points"): KEY,
    ("analysis/prediction/hardware_times.py", "network_named"): USER_SYNTAX,
    ("experiment/recordings.py", "timed_training_of"): NAME,
    ("results/traces/rank_trace.py", "<module>"): OTHER_PROGRAM,
    ("results/traces/rank_trace.py", "__init__"): OTHER_PROGRAM,
    ("results/traces/rank_trace.py", "_backward_compute"): OTHER_PROGRAM,
    ("results/traces/rank_trace.py", "_collective"): OTHER_PROGRAM,
    ("results/traces/rank_trace.py", "_size_bytes"): OTHER_PROGRAM,
    ("cli/front_page.py", "_summary"): LAYOUT,
    ("cli/front_page.py", "_verb_files"): NAME,
    ("cli/front_page.py", "_wrapped"): LAYOUT,
    ("cli/help_pages.py", "<module>"): LAYOUT,
    ("results/provenance.py", "<module>"): OTHER_PROGRAM,
    ("results/provenance.py", "_without_filters_of_checkout"): OTHER_PROGRAM,
    ("results/run_commands.py", "<module>"): USER_SYNTAX,
    ("results/run_commands.py", "_known_flags"): USER_SYNTAX,
    ("results/run_commands.py", "_absolute"): USER_SYNTAX,
    ("results/run_commands.py", "_absolute_word"): USER_SYNTAX,
    ("results/run_commands.py", "_flag_of"): NAME,
    ("cli/help_pages.py", "brief_flag"): NAME,
    ("cli/help_pages.py", "text_and_examples"): LAYOUT,
    ("experiment/expand.py", "_card_name"): NAME,
    ("experiment/expand.py", "_trial"): USER_SYNTAX,
    ("experiment/record.py", "_inline"): OTHER_PROGRAM,
    ("hardware/tables.py", "table"): OTHER_PROGRAM,
    ("launch/local/processes.py", "_read"): PROTOCOL,
    ("launch/local/processes.py", "_stat_of"): OTHER_PROGRAM,
    ("launch/probing.py", "machine_from_probe"): NAME,
    ("launch/probing.py", "probe_in_new_process"): FOREIGN_ERROR,
    ("launch/validity/comm.py", "judge"): KEY,
    ("report/analyzed_run.py", "dataset_of"): USER_SYNTAX,
    ("report/comm/sections.py", "communication_brief"): LAYOUT,
    ("report/comm/sections.py", "communication_sections"): LAYOUT,
    ("quantities.py", "counted"): LAYOUT,
    ("report/numbers.py", "short_percent"): LAYOUT,
    ("results/ledger.py", "_entries"): PROTOCOL,
    ("results/run.py", "_what_is_wrong"): PROTOCOL,
    ("results/topology.py", "cores_of"): OTHER_PROGRAM,
    ("results/topology.py", "plain_uuid"): OTHER_PROGRAM,
    ("results/schema.py", "<module>"): NAME,
    ("results/stored/records.py", "<module>"): KEY,
    ("results/stored/records.py", "_check_collectives"): KEY,
    ("studies/execution.py", "_stored_request"): PROTOCOL,
    ("results/schema.py", "_check_numbers"): KEY,
    ("results/schema.py", "_major"): NAME,
    ("studies/comm/comm.py", "<module>"): USER_SYNTAX,
    ("studies/report.py", "_texts"): NAME,
    ("studies/report.py", "_why_nothing"): LAYOUT,
    ("studies/runs/removing.py", "_is_ours"): NAME,
    ("studies/runs/resuming.py", "_comparable"): NAME,
    ("studies/scaling/run.py", "from_flags"): USER_SYNTAX,
    ("studies/slurm/job.py", "_last_error"): OTHER_PROGRAM,
    ("studies/slurm/job.py", "_log_of"): LAYOUT,
    ("studies/slurm/queue.py", "tell"): PROTOCOL,
    ("studies/trace/profiling.py", "_check"): USER_SYNTAX,
    ("studies/trace/profiling.py", "_ranks_of"): USER_SYNTAX,
    ("studies/trace/profiling.py", "run_nsys"): OTHER_PROGRAM,
    ("studies/tuning/levers.py", "_read"): USER_SYNTAX,
    ("studies/tuning/levers.py", "_wanted"): USER_SYNTAX,
    ("studies/tuning/levers.py", "tried_values"): USER_SYNTAX,
    ("studies/tuning/tune.py", "<module>"): USER_SYNTAX,
    ("studies/tuning/tune.py", "from_flags"): USER_SYNTAX,
    ("studies/tuning/tune.py", "levers_from"): USER_SYNTAX,
    ("worker/attach/imports.py", "_forget"): NAME,
    ("worker/benchmarks/memory.py", "_limited"): FOREIGN_ERROR,
    ("worker/memory/device_memory.py", "_guarded"): FOREIGN_ERROR,
    ("worker/memory/forecast.py", "_forecast_variant"): FOREIGN_ERROR,
    ("worker/memory/forecast.py", "_times_that_fit"): KEY,
    ("worker/process/rank.py", "_first_statement"): FOREIGN_ERROR,
    ("worker/process/zygote.py", "serve"): PROTOCOL,
    ("worker/strategies/scratch_ddp.py", "__init__"): "a tensor, not text",
    ("worker/training/activity/compilation.py", "_first_line"): FOREIGN_ERROR,
    ("worker/training/activity/compilation.py", "_site"): NAME,
    ("worker/training/assembly.py", "_check_same_on_all_ranks"): KEY,
    ("worker/training/ddp_logging.py", "bucket_samples"): OTHER_PROGRAM,
    ("worker/counting/flops.py", "<module>"): OTHER_PROGRAM,
    ("worker/training/optimizers.py", "_tables_of"): NAME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A place in the source."""

    file: str  # below src/scalescope
    line: int
    function: str  # the innermost one around it
    text: str
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Every figure of a tree, with the places it counts."""

    fillers: tuple[Occurrence, ...]
    subscripts: tuple[Occurrence, ...]  # settings["name"]
    gets: tuple[Occurrence, ...]  # settings.get("name")
    generic: tuple[Occurrence, ...]  # either, with a name held by a variable
    parsing: tuple[Occurrence, ...]
    folders: Counter[str]
    discovered: Counter[str]
    many_parameters: tuple[Occurrence, ...]
    twice: tuple[str, ...]
    longest: tuple[int, Occurrence]

    @property
    def unexplained(self) -> tuple[Occurrence, ...]:
        return tuple(occurrence for occurrence in self.parsing if occurrence.reason is None)

    @property
    def limited(self) -> dict[str, int]:
        """The figures that have a limit."""
        return {
            "filler identifiers": len(self.fillers),
            "settings read by key": len(self.subscripts) + len(self.gets),
            "unexplained parsing of text": len(self.unexplained),
            "files in the largest folder": max(self.folders.values()),
            "functions with more than 7 parameters": len(self.many_parameters),
            "class names used twice": len(self.twice),
        }


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A parsed file, and the innermost function around each of its nodes."""

    file: str
    nodes: tuple[tuple[ast.AST, str], ...]

    def occurrence(self, node: ast.AST, function: str, text: str, reason: str | None = None) -> Occurrence:
        line = getattr(node, "lineno", 0)
        return Occurrence(file=self.file, line=line, function=function, text=text, reason=reason)


def read_modules(package: Path) -> tuple[Module, ...]:
    """Every Python file of a package."""
    modules = []
    for path in sorted(package.rglob("*.py")):
        nodes = tuple(_nodes(ast.parse(path.read_text(encoding="utf-8"))))
        modules.append(Module(file=path.relative_to(package).as_posix(), nodes=nodes))
    return tuple(modules)


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every node below a tree, with the name of the innermost function around it."""
    waiting = [(tree, "<module>")]
    while waiting:
        node, function = waiting.pop()
        for child in ast.iter_child_nodes(node):
            yield child, function
            waiting.append((child, child.name if isinstance(child, Function) else function))


def shape_of(package: Path, *, moved: bool = False) -> Shape:
    """All figures of a package; `moved` finds reasons by the file's name alone, for another revision."""
    modules = read_modules(package)
    accesses = [access for module in modules for access in _settings_accesses(module)]
    functions = [
        (module, node) for module in modules for node, _ in module.nodes if isinstance(node, Function)
    ]
    plain, discovered = _folders(modules)
    longest = max(functions, key=lambda pair: _length(pair[1]))
    return Shape(
        fillers=tuple(filler for module in modules for filler in _fillers(module)),
        subscripts=tuple(access for kind, access in accesses if kind == "subscript"),
        gets=tuple(access for kind, access in accesses if kind == "get"),
        generic=tuple(access for kind, access in accesses if kind == "generic"),
        parsing=tuple(place for module in modules for place in _parsing(module, moved=moved)),
        folders=plain,
        discovered=discovered,
        many_parameters=tuple(
            module.occurrence(node, node.name, f"{count} parameters")
            for module, node in functions
            if (count := _parameters(node)) > MOST_PARAMETERS
        ),
        twice=_repeated_classes(modules),
        longest=(_length(longest[1]), longest[0].occurrence(longest[1], longest[1].name, "")),
    )


def _fillers(module: Module) -> Iterator[Occurrence]:
    """Names of variables, parameters, attributes, keywords and functions that say nothing."""
    for node, function in module.nodes:
        match node:
            case (
                ast.Name(id=name)
                | ast.arg(arg=name)
                | ast.Attribute(attr=name)
                | ast.keyword(arg=name)
                | ast.FunctionDef(name=name)
            ) if name in FILLERS:
                yield module.occurrence(node, function, str(name))


def _settings_accesses(module: Module) -> Iterator[tuple[str, Occurrence]]:
    """`x.settings["name"]`, `settings["name"]` and `.get("name")` outside the layers that own settings."""
    if module.file.startswith(SETTINGS_OWNERS):
        return
    for node, function in module.nodes:
        match node:
            case ast.Subscript(value=owner, slice=key):
                kind = "subscript"
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[key, *_]):
                kind = "get"
            case _:
                continue
        if not _is_settings(owner):
            continue
        is_literal = isinstance(key, ast.Constant) and isinstance(key.value, str)
        yield kind if is_literal else "generic", module.occurrence(node, function, ast.unparse(node))


def _is_settings(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute | ast.Name)
        and getattr(node, "attr", getattr(node, "id", None)) == "settings"
    )


def _parsing(module: Module, *, moved: bool) -> Iterator[Occurrence]:
    """Text that is taken apart or searched for words; a compiled pattern counts where it is written."""
    for node, function in module.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)) if name in RE_FUNCTIONS:
                pass
            case ast.Call(func=ast.Attribute(attr=name)) if name in STRING_METHODS:
                pass
            case ast.Compare(left=ast.Constant(value=str(text)), ops=[ast.In()]) if " " in text:
                pass
            case _:
                continue
        text = ast.unparse(node)
        if len(text) > 80:
            text = f"{text[:80]}…"
        yield module.occurrence(node, function, text, _reason(module.file, function, moved=moved))


def _reason(file: str, function: str, *, moved: bool) -> str | None:
    name = Path(file).name
    for known, reason in FILES.items():
        if file == known or file.startswith(f"{known}/") or (moved and name == Path(known).name):
            return reason
    for (known, known_function), reason in FUNCTIONS.items():
        if function == known_function and (file == known or (moved and name == Path(known).name)):
            return reason
    return None


def unused_reasons(shape: Shape) -> tuple[str, ...]:
    """Entries of the lists of reasons that explain nothing any more."""
    files = {occurrence.file for occurrence in shape.parsing}
    places = {(occurrence.file, occurrence.function) for occurrence in shape.parsing}
    stale = [known for known in FILES if not any(f == known or f.startswith(f"{known}/") for f in files)]
    return (*stale, *(f"{file} {function}" for file, function in FUNCTIONS if (file, function) not in places))


def _folders(modules: Iterable[Module]) -> tuple[Counter[str], Counter[str]]:
    """Python files directly in each folder, `__init__.py` included; discovered folders apart."""
    counts = Counter(Path(module.file).parent.as_posix() for module in modules)
    discovered = Counter({name: n for name, n in counts.items() if Path(name).name in DISCOVERED})
    return counts - discovered, discovered


def _parameters(node: Function) -> int:
    given = node.args
    names = [parameter.arg for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _repeated_classes(modules: Iterable[Module]) -> tuple[str, ...]:
    files: dict[str, list[str]] = {}
    for module in modules:
        for node, _ in module.nodes:
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(module.file)
    return tuple(f"{name} ({', '.join(held)})" for name, held in files.items() if len(held) > 1)


def read_revision(revision: str, folder: Path) -> Path:
    """The package of a git revision, unpacked into a folder."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, "src/scalescope"], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src" / "scalescope"


def _package_in(folder: Path) -> Path:
    nested = folder / "src" / "scalescope"
    return nested if nested.is_dir() else folder


def _figures(shape: Shape) -> dict[str, str]:
    """Every figure in words, in the order in which they are printed."""
    limited = {name: str(value) for name, value in shape.limited.items()}
    folder, _ = shape.folders.most_common(1)[0]
    widest = shape.discovered.most_common(1)
    lines, longest = shape.longest
    return {
        **limited,
        'of these: settings["name"]': str(len(shape.subscripts)),
        'of these: settings.get("name")': str(len(shape.gets)),
        "settings read by a variable's name": str(len(shape.generic)),
        "all parsing of text": str(len(shape.parsing)),
        "largest folder": folder,
        "largest discovered folder": f"{widest[0][0]} ({widest[0][1]})" if widest else "none",
        "largest function": f"{longest.function} ({lines} lines)",
    }


def _print_table(now: Shape, before: Shape | None) -> None:
    figures, earlier = _figures(now), {} if before is None else _figures(before)
    heading = "" if before is None else f" {'before':>34}"
    print(f"{'figure':<40}{heading} {'now':>34} {'limit':>6}")
    for name, value in figures.items():
        old = "" if before is None else f" {earlier[name]:>34}"
        print(f"{name:<40}{old} {value:>34} {LIMITS.get(name, ''):>6}")
    if before is not None:
        print("Reasons are listed for this tree; before, text without one is an upper bound.")


def _print_places(shape: Shape, *, verbose: bool) -> None:
    listed = (*shape.fillers, *shape.subscripts, *shape.gets, *shape.many_parameters)
    for occurrence in sorted(listed, key=_position):
        print(f"  {occurrence}")
    for repeated in shape.twice:
        print(f"  class {repeated}")
    for occurrence in sorted(shape.parsing if verbose else shape.unexplained, key=_position):
        print(f"  {occurrence} [{occurrence.reason or 'NO REASON'}]")


def _position(occurrence: Occurrence) -> tuple[str, int]:
    return occurrence.file, occurrence.line


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="FOLDER_OR_REVISION")
    parser.add_argument("-v", "--verbose", action="store_true", help="every place that parses text")
    arguments = parser.parse_args()
    now = shape_of(ROOT / "src" / "scalescope")
    before = None
    if arguments.against is not None and Path(arguments.against).is_dir():
        before = shape_of(_package_in(Path(arguments.against)), moved=True)
    elif arguments.against is not None:
        with tempfile.TemporaryDirectory() as folder:
            before = shape_of(read_revision(arguments.against, Path(folder)), moved=True)
    _print_table(now, before)
    print("Now:")
    _print_places(now, verbose=arguments.verbose)
    return int(any(now.limited[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
