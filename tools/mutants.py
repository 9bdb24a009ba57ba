"""Mutation test: change one expression of `src` at a time, and count how many changes the tests notice.

1. `python tools/mutants.py choose` draws mutants (seeded, from all layers) into tools/mutants.json.
2. `python tools/mutants.py probe TREE` puts a probe before each mutated statement of a disposable clone. Its
   tests, run as usual with SCALESCOPE_PROBES=FILE set, write which test reached which mutant.
3. `python tools/mutants.py run TREE --reached FILE --results FILE` runs each mutant against those tests in
   copies of a clean clone. It goes on where it stopped, and stops by itself after `--minutes`.
4. `python tools/mutants.py table RESULTS…` prints the share killed, by layer.
"""

import argparse
import ast
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tools" / "mutants.json"
PACKAGE = Path("src/scalescope")
SEED = 34
COUNT = 160
FEWEST_PER_LAYER = 6
LIMIT_S = 120
QUICK = "make test"
_QUICK_MARKS, _OTHER_MARKS = "not thorough and not frameworks", "thorough and not frameworks"
# A mutant of the private view would mount over folders of whoever runs it: it is never run.
_WITHOUT_SITE = ("src/scalescope/private_view.py", "src/scalescope/launch/guard.py")  # has no probe
_NEVER_RUN = ("src/scalescope/private_view.py",)
_OPPOSITES: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_moments = itertools.count(int(time.time()) + 1)


@dataclass(frozen=True)
class Mutant:
    """One change: `original` at a line and column counted from the start of `function`."""

    number: int
    layer: str
    path: str
    function: str
    line: int
    column: int
    original: str
    changed: str
    digest: str  # of the whole function; where it has changed, the mutant is gone


# ---- drawing ----


def choose(seed: int, count: int) -> list[Mutant]:
    """Draw `count` mutants: at least a few per layer, the rest by its number of candidates."""
    candidates: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        relative = path.relative_to(ROOT / PACKAGE)
        layer = relative.parts[0] if len(relative.parts) > 1 else "(modules)"
        candidates[layer] += _mutants_of(path, layer)
    total = sum(map(len, candidates.values()))
    drawing = random.Random(seed)
    spare = count - FEWEST_PER_LAYER * len(candidates)
    drawn = []
    for _, of_layer in sorted(candidates.items()):
        share = FEWEST_PER_LAYER + round(spare * len(of_layer) / total)
        drawn += drawing.sample(of_layer, min(share, len(of_layer)))
    return [Mutant(**{**asdict(mutant), "number": number}) for number, mutant in enumerate(drawn)]


def _mutants_of(path: Path, layer: str) -> list[Mutant]:
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    found = []
    for name, function in _functions(ast.parse(text)):
        for node, changed in _changes_in(function):
            original = ast.get_source_segment(text, node)
            if original and original != changed:
                found.append(
                    Mutant(
                        0,
                        layer,
                        str(path.relative_to(ROOT)),
                        name,
                        node.lineno - function.lineno,
                        node.col_offset,
                        original,
                        changed,
                        _digest(lines, function),
                    )
                )
    return found


def _digest(lines: list[str], function: ast.FunctionDef) -> str:
    source = "".join(lines[function.lineno - 1 : function.end_lineno])
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Outermost functions and methods, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node, prefix)


def _changes_in(function: ast.FunctionDef) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for statement in function.body:
        yield from _changes(statement)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.arguments):
        return  # positions inside of f-strings are wrong before 3.12; messages are prose
    yield from _own_changes(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _own_changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPPOSITES:
            yield node, f"({ast.unparse(ast.Compare(left, [_OPPOSITES[type(op)]()], [right]))})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPPOSITES and _is_number(left, right):
            yield node, f"({ast.unparse(ast.BinOp(left, _OPPOSITES[type(op)](), right))})"
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(_OPPOSITES[type(op)](), values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, str(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield node, "return None"
        case ast.Expr(value=ast.Call()):
            yield node, "pass"


def _is_number(*operands: ast.expr) -> bool:
    """Whether these may be numbers: not text, lists or tuples that are joined, nor paths."""
    joined = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Set, ast.Dict)
    return not any(
        isinstance(operand, joined) or (isinstance(operand, ast.Constant) and isinstance(operand.value, str))
        for operand in operands
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def stored_cases() -> list[Mutant]:
    return [Mutant(**case) for case in json.loads(CASES.read_text())]


# ---- applying ----


def _found(tree: Path, mutant: Mutant) -> tuple[str, int, ast.FunctionDef] | None:
    """The file's text, where the mutated expression begins in it, and its function; None: it has changed."""
    path = tree / mutant.path
    text = path.read_text() if path.exists() else ""
    lines = text.splitlines(keepends=True)
    for name, function in _functions(ast.parse(text)):
        if name == mutant.function and _digest(lines, function) == mutant.digest:
            row = function.lineno - 1 + mutant.line
            column = len(lines[row].encode()[: mutant.column].decode())
            return text, sum(map(len, lines[:row])) + column, function
    return None


def mutated(tree: Path, mutant: Mutant) -> str | None:
    found = _found(tree, mutant)
    if found is None:
        return None
    text, start, _ = found
    end = start + len(mutant.original)
    assert text[start:end] == mutant.original, mutant
    return text[:start] + mutant.changed + text[end:]


def probe(tree: Path) -> None:
    """Put a call before the statement of every mutant; `sitecustomize` of the clone says what it does."""
    places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for mutant in stored_cases():
        if mutant.path in _WITHOUT_SITE:
            continue
        found = _found(tree, mutant)
        if found is None:
            print(f"mutant {mutant.number} of {mutant.path}: {mutant.function} has changed")
            continue
        line = found[0].count("\n", 0, found[1]) + 1
        statement = _statement_at(found[2], line)
        places[mutant.path].append((statement.lineno, statement.col_offset, mutant.number))
    for path, lines_of in places.items():
        lines = (tree / path).read_text().splitlines(keepends=True)
        for line, indent, number in sorted(lines_of, reverse=True):
            lines.insert(line - 1, f"{' ' * indent}scalescope_probe({number})\n")
        (tree / path).write_text("".join(lines))
    site_packages = next((tree / ".venv" / "lib").glob("python*/site-packages"))
    (site_packages / "scalescope_probe.pth").write_text("import scalescope_probe\n")
    (site_packages / "scalescope_probe.py").write_text(_PROBE)


def _statement_at(function: ast.FunctionDef, line: int) -> ast.stmt:
    """The innermost statement around a line that another may stand before."""
    innermost: ast.stmt = function.body[0]
    bodies = [function.body]
    while bodies:
        body = bodies.pop()
        for statement in body:
            if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
                innermost = statement
                for name in ("body", "orelse", "finalbody"):
                    inner = getattr(statement, name, [])
                    is_elif = name == "orelse" and len(inner) == 1 and isinstance(inner[0], ast.If)
                    bodies += [inner] if inner and not is_elif else []
                bodies += [handler.body for handler in getattr(statement, "handlers", [])]
                bodies += [case.body for case in getattr(statement, "cases", [])]
    return innermost


_PROBE = '''"""Writes which test reached which mutant, from any process that a test started."""
import builtins, os
_seen = set()
_file = os.environ.get("SCALESCOPE_PROBES", "/tmp/scalescope_probes")
def _probe(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _seen:
        _seen.add((number, test))
        try:
            to = os.open(_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(to, f"{number} {test}\\n".encode())
            os.close(to)
        except OSError:
            pass
builtins.scalescope_probe = _probe
'''


# ---- running ----


def reaching_tests(reached: Path) -> dict[int, list[str]]:
    """Tests that reached each mutant, those that reach few mutants first; whole files where a fixture did."""
    tests: dict[int, set[str]] = defaultdict(set)
    files: dict[int, set[str]] = defaultdict(set)
    for line in reached.read_text(errors="replace").splitlines():
        number, _, test = line.partition(" ")
        name, _, phase = test.rpartition(" (")
        if name:
            tests[int(number)].add(name)
            if phase == "setup)":
                files[int(number)].add(name.partition("::")[0])
    spread = Counter(test for of_one in tests.values() for test in of_one)
    slow = ("tests/slurm", "tests/netns", "tests/faults", "tests/gloo", "tests/browser", "tests/commands")
    return {
        number: sorted(of_one, key=lambda test: (test.startswith(slow), spread[test], test))
        + sorted(files[number])
        for number, of_one in tests.items()
    }


def run(tree: Path, reached: Path, results: Path, minutes: float, workers: int, quick: Path | None) -> None:
    done = (
        {json.loads(line)["number"] for line in results.read_text().splitlines()}
        if results.exists()
        else set()
    )
    waiting = [mutant for mutant in stored_cases() if mutant.number not in done]
    reaching = reaching_tests(reached)
    ends = time.monotonic() + minutes * 60
    quick_tests = set(quick.read_text().splitlines()) if quick else None
    lock = threading.Lock()

    def work(copy: Path) -> None:
        while time.monotonic() < ends:
            with lock:
                if not waiting:
                    return
                mutant = waiting.pop(0)
            tests = [] if mutant.path in _NEVER_RUN else reaching.get(mutant.number, [])
            result = _tried(copy, tree, mutant, tests, quick_tests)
            with lock, results.open("a") as file:
                file.write(json.dumps({"number": mutant.number, "layer": mutant.layer, **result}) + "\n")

    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests must not inherit that it is ignored
    copies = [tree.parent / f"{tree.name}-mutant-{worker}" for worker in range(workers)]
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".git"))
        subprocess.run(["git", "init", "-q", str(copy)], check=True)
    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _tried(
    copy: Path, tree: Path, mutant: Mutant, tests: list[str], quick: set[str] | None
) -> dict[str, object]:
    """Run the tests of `make test` first, then the others, until one fails."""
    text = mutated(copy, mutant)
    if text is None:
        return {"result": "gone"}
    if not tests:
        return {"result": "not reached"}
    began = time.monotonic()
    path = copy / mutant.path
    before = path.read_text()
    _write(path, text)
    sets: list[tuple[str, list[str], tuple[str, ...]]] = [(QUICK, tests, ())]
    if quick is not None:
        files = [test for test in tests if "::" not in test]
        sets = [
            (QUICK, [test for test in tests if test in quick] + files, ("-m", _QUICK_MARKS)),
            (
                "make test-all",
                [test for test in tests if "::" in test and test not in quick] + files,
                ("-m", _OTHER_MARKS),
            ),
        ]
    try:
        for name, of_set, options in sets:
            left = LIMIT_S - (time.monotonic() - began)
            if of_set and left > 0:
                code, tail = _pytest(copy, tree, [*options], of_set, left)
                if code != 0:
                    result = "out of time" if code is None else "killed"
                    return {"result": result, "by": name, "s": time.monotonic() - began, "tail": tail}
        return {"result": "survived", "s": time.monotonic() - began}
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    """Compiled modules are found by the second in which their source was written: each text gets its own."""
    path.write_text(text)
    moment = next(_moments)
    os.utime(path, (moment, moment))


def _pytest(
    copy: Path, tree: Path, options: list[str], tests: list[str], limit_s: float
) -> tuple[int | None, str]:
    """Exit code of the first batch that fails (None: out of time), and pytest's last line."""
    ends = time.monotonic() + limit_s
    for batch in (tests[:60], tests[60:]):
        if not batch:
            continue
        chosen = copy / ".tests"
        chosen.write_text("\n".join(batch))
        process = subprocess.Popen(
            [
                str(tree / ".venv/bin/python"),
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                *options,
                f"@{chosen}",
            ],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        if process.returncode not in (0, 5):
            lines = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return process.returncode, (lines or out.splitlines()[-1:] or [""])[0][:200]
    return 0, ""


# ---- reading ----


def table(files: list[Path]) -> None:
    for file in files:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        print(f"{file.name}: {len(rows)} mutants")
        by_layer: dict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            for layer in (row["layer"], "all"):
                by_layer[layer][row["result"]] += 1
                by_layer[layer]["quick"] += row["result"] == "killed" and row["by"] == QUICK
        for layer, counts in by_layer.items():
            present = sum(counts[name] for name in ("killed", "survived", "not reached", "out of time"))
            share = counts["killed"] / present if present else float("nan")
            print(f"  {layer:12} {share:6.1%} of {present:3}  {dict(counts)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    choosing = verbs.add_parser("choose")
    choosing.add_argument("--seed", type=int, default=SEED)
    choosing.add_argument("--count", type=int, default=COUNT)
    verbs.add_parser("probe").add_argument("tree", type=Path)
    running = verbs.add_parser("run")
    running.add_argument("tree", type=Path, help="a clone with an installed .venv; it is copied")
    running.add_argument("--reached", type=Path, required=True)
    running.add_argument("--results", type=Path, required=True)
    running.add_argument("--minutes", type=float, default=45)
    running.add_argument("--workers", type=int, default=2)
    running.add_argument("--quick", type=Path, help="names of the tests of `make test`, one per line")
    verbs.add_parser("table").add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    match options.verb:
        case "choose":
            CASES.write_text(
                json.dumps([asdict(case) for case in choose(options.seed, options.count)], indent=1)
            )
        case "probe":
            probe(options.tree.resolve())
        case "run":
            run(
                options.tree.resolve(),
                options.reached,
                options.results,
                options.minutes,
                options.workers,
                options.quick,
            )
        case "table":
            table(options.results)


if __name__ == "__main__":
    main()
