"""Imported libraries are declared as dependencies; missing ones are reported."""

import ast
import importlib.metadata
import re
import sys
import tomllib

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests import ROOT
from tests.train.runs import save_untrained

OWN_PACKAGES = ("megaptm", "data_pipeline")
PART_OF = {
    "pynvml": "nvidia-ml-py",
    "pydantic_core": "pydantic",
    "backports": "backports-zstd",
    "compression": "backports-zstd",
}
"""Module -> library that provides it."""
BUILT = {"flash-attn", "triton"}
"""Used only if installed, because they are built for a certain GPU and torch."""


def imported() -> set[str]:
    """Return the libraries that are imported anywhere, by their names on PyPI."""
    libraries = set()
    for path in (path for package in OWN_PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                libraries |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                libraries.add(node.module.partition(".")[0])
    libraries -= {*sys.stdlib_module_names, *OWN_PACKAGES}
    known = importlib.metadata.packages_distributions()
    return {normal(PART_OF.get(name) or name_of(known.get(name, [name]), name)) for name in libraries}


def name_of(distributions: list[str], module: str) -> str:
    """Return the library that provides a module; of several, the one with the module's name."""
    return distributions[0] if len(distributions) == 1 else module


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_imported_libraries_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    declared = {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}
    assert imported() - declared == BUILT


@pytest.mark.parametrize("command", ["export", "import"])
def test_missing_transformers_is_reported(command, real_corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    environment, _ = save_untrained("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
    source = environment if command == "export" else tmp_path / "model"
    refused = CliRunner().invoke(main, [command, "hf", str(source), str(tmp_path / "new")])
    assert "transformers: `pip install 'megaptm[hub]'`" in refused.output
    assert not (tmp_path / "new").exists()
