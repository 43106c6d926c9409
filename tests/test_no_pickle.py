"""Nothing is read in a way that lets what is read run code: whoever can write a file would run code in the reader.

What Ray and torch send between their own processes is theirs. Tests may pickle in memory, as Ray does, and write
pickles for others to refuse.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

PARTS = ("megaptm", "data_pipeline", "benchmarks", "cluster", "slurm", "docs", "tests")
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
UNSAFE = {"unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "read_pickle", "Unpickler", "UnsafeLoader"}
"""Names that nobody uses: of yaml, pandas and pickle."""


def found(source: str, *, test: bool = False) -> list[str]:
    """What a module reads unsafely, with lines."""
    return [f"{node.lineno}: {what}" for node in ast.walk(ast.parse(source)) for what in _unsafe(node, test)]


def _unsafe(node: ast.AST, test: bool) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names]
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
        for module in modules:
            if module.split(".")[0] in MODULES and not (test and module == "pickle" and isinstance(node, ast.Import)):
                yield f"import {module}"
        yield from (name for name in names if isinstance(node, ast.ImportFrom) and name in UNSAFE)
    elif isinstance(node, ast.Attribute) and node.attr in UNSAFE:
        yield node.attr
    elif isinstance(node, ast.Call):
        yield from _unsafe_call(node)


def _unsafe_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in ("torch.load", "torch.hub.load", "pickle.load"):
        if given.get("weights_only") != "True":
            yield name
    elif name.endswith(("yaml.load", "yaml.load_all")):
        # Loaders of our own are subclasses of yaml's safe ones: they are named so.
        loader = given.get("Loader") or (ast.unparse(node.args[1]) if len(node.args) > 1 else "")
        if "Safe" not in loader:
            yield name
    if given.get("allow_pickle", "False") != "False":
        yield f"{name}(allow_pickle={given['allow_pickle']})"
    if given.get("trust_remote_code", "False") != "False":
        yield f"{name}(trust_remote_code={given['trust_remote_code']})"


def modules() -> list[Path]:
    return [path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]


def test_nothing_is_read_that_can_run_code():
    assert len(modules()) > 300
    unsafe = {
        str(path.relative_to(ROOT)): some
        for path in modules()
        if (some := found(path.read_text(encoding="utf-8"), test=path.is_relative_to(ROOT / "tests")))
    }
    assert unsafe == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import numpy, cloudpickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "numpy.lib.format.read_array(file, allow_pickle=allowed)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text, yaml.FullLoader)",
        "yaml.unsafe_load(text)",
        "from yaml import full_load",
        "pd.read_pickle(path)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_each_unsafe_way_is_seen(source):
    assert found(source)


@pytest.mark.parametrize(
    "source",
    [
        "np.load(path)",
        "torch.load(path, weights_only=True)",
        "yaml.load(text, Loader=SafeLoader)",
        "json.load(file)",
        "AutoModel.from_pretrained(name, trust_remote_code=False)",
    ],
)
def test_safe_ways_are_left_alone(source):
    assert found(source) == []


def test_a_test_may_pickle_in_memory_but_not_read_a_pickle():
    assert found("import pickle\npickle.loads(pickle.dumps(1))", test=True) == []
    assert found("import pickle\npickle.load(file)", test=True)
