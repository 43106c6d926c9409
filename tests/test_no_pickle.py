"""No file is read in a way that can run code from it.

Ray and torch may pickle between their own processes. Tests may pickle in memory, and write pickles that must be
refused.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

PARTS = ("megaptm", "data_pipeline", "benchmarks", "cluster", "slurm", "docs", "tests")
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
UNSAFE = {"unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "read_pickle", "Unpickler", "UnsafeLoader"}
"""Unused names of yaml, pandas and pickle."""


def unsafe_reads(source: str, *, test: bool = False) -> list[str]:
    """Return the unsafe reads of a module, with lines."""
    return [f"{node.lineno}: {problem}" for node in ast.walk(ast.parse(source)) for problem in _unsafe(node, test)]


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
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in ("torch.load", "torch.hub.load", "pickle.load"):
        if keywords.get("weights_only") != "True":
            yield name
    elif name.endswith(("yaml.load", "yaml.load_all")):
        # Loaders of megaptm are subclasses of yaml's safe loaders, and named so.
        loader = keywords.get("Loader") or (ast.unparse(node.args[1]) if len(node.args) > 1 else "")
        if "Safe" not in loader:
            yield name
    if keywords.get("allow_pickle", "False") != "False":
        yield f"{name}(allow_pickle={keywords['allow_pickle']})"
    if keywords.get("trust_remote_code", "False") != "False":
        yield f"{name}(trust_remote_code={keywords['trust_remote_code']})"


def modules() -> list[Path]:
    return [path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]


def test_no_module_reads_unsafely():
    assert len(modules()) > 300
    unsafe = {
        str(path.relative_to(ROOT)): problems
        for path in modules()
        if (problems := unsafe_reads(path.read_text(encoding="utf-8"), test=path.is_relative_to(ROOT / "tests")))
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
def test_unsafe_reads_are_found(source):
    assert unsafe_reads(source)


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
def test_safe_reads_are_accepted(source):
    assert unsafe_reads(source) == []


def test_tests_may_pickle_only_in_memory():
    assert unsafe_reads("import pickle\npickle.loads(pickle.dumps(1))", test=True) == []
    assert unsafe_reads("import pickle\npickle.load(file)", test=True)
