"""What the source never does: run text as code or through a shell, unpickle, open connections."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "scalescope"

# Modules that run or unpack what they read, or that speak to other machines.
_MODULES = {
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "codeop", "pty"),
    *("urllib", "http", "requests", "httpx", "aiohttp", "ftplib", "smtplib", "telnetlib", "xmlrpc", "ssl"),
    *("socketserver", "huggingface_hub", "wandb", "datasets"),
}
# Text from the Hugging Face hub, for whoever names a data set and no folder.
_ALLOWED = {("worker/text.py", "import datasets")}
_FUNCTIONS = {"eval", "exec", "compile", "__import__"}
_METHODS = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("torch.load", "torch.hub.load", "numpy.load", "np.load", "yaml.load", "yaml.load_all"),
    *("yaml.unsafe_load", "yaml.full_load", "asyncio.create_subprocess_shell"),
    *("dist.broadcast_object_list", "dist.all_gather_object", "dist.gather_object"),
    *("dist.scatter_object_list", "dist.send_object_list", "dist.recv_object_list"),
}
_LAST_WORDS = {method.rpartition(".")[2] for method in _METHODS}
_SOCKET = {"socket.gethostname", "socket.gethostbyname"}  # the names of this host, nothing else
# What a file has to hold to be parsed: parsing all of them takes seconds.
_WORDS = re.compile(
    rf"(?:\bimport\b|\bfrom\b|import_module).*\b(?:{'|'.join(_MODULES)})\b"
    rf"|(?<![.\w])(?:{'|'.join(_FUNCTIONS)})\(|{'|'.join(map(re.escape, _METHODS))}"
    r"|\bsocket\b|\bshell\s*=|\bweights_only\s*=|\ballow_pickle\s*="
)
_RENDEZVOUS = "worker/process/rendezvous.py"  # where ranks of several hosts find each other


def _uses(tree: ast.AST) -> Iterator[str]:
    """Every use of what is not allowed, in words."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"import {name.name}" for name in names if name.name.split(".")[0] in _MODULES)
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in _MODULES:
                yield f"import {module}"
            case ast.ImportFrom(module="socket"):
                yield "import from socket"
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]):
                yield from (f"import {name}",) if name.split(".")[0] in _MODULES else ()
            case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
                yield f"{name}()"
            case ast.Attribute(attr=attr) if attr in _LAST_WORDS and (name := ast.unparse(node)) in _METHODS:
                yield name
            case ast.Attribute(value=ast.Name(id="socket")) if ast.unparse(node) not in _SOCKET:
                yield ast.unparse(node)
            case ast.keyword(arg="shell"):
                yield "shell="
            case ast.keyword(arg="weights_only") | ast.keyword(arg="allow_pickle"):
                yield f"{node.arg}="


def _found_in(folder: Path) -> set[tuple[str, str]]:
    return {
        (path.relative_to(folder).as_posix(), use)
        for path in folder.rglob("*.py")
        if _WORDS.search(text := path.read_text(encoding="utf-8"))
        for use in _uses(ast.parse(text))
        if not (use.startswith("socket.") and path == folder / _RENDEZVOUS)
    }


def test_nothing_is_run_as_code_unpickled_or_sent() -> None:
    assert _found_in(ROOT) == _ALLOWED


_FORBIDDEN = (
    *("import pickle", "from urllib.request import urlopen", "importlib.import_module('requests')"),
    *("eval(text)", "os.system(text)", "subprocess.run(text, shell=True)", "torch.load(path)"),
    *("socket.socket()", "from socket import socket", "numpy.load(path, allow_pickle=True)"),
)


def test_each_of_these_is_noticed() -> None:
    noticed = [line for line in _FORBIDDEN if _WORDS.search(line) and list(_uses(ast.parse(line)))]
    assert noticed == list(_FORBIDDEN)


def test_templates_are_escaped_and_load_nothing() -> None:
    template = (ROOT / "report" / "render" / "page.html.j2").read_text(encoding="utf-8")
    for word in ("|safe", "| safe", "autoescape", "http://", "https://", "src=", "@import", "url("):
        assert word not in template, word
