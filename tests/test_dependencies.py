"""What the code imports is declared, not there only because another library brings it; what is absent is told."""

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

OURS = ("megaptm", "data_pipeline")
PART_OF = {"pydantic_core": "pydantic", "backports": "backports-zstd", "compression": "backports-zstd"}
"""Module -> the library that is declared for it."""
BUILT = {"flash-attn", "transformer-engine"}
"""Used where somebody has them, built for their GPU and their torch: an extra could not promise that."""


def imported() -> set[str]:
    """Libraries that are imported anywhere, by their names on PyPI."""
    found = set()
    for path in (path for package in OURS for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    found -= {*sys.stdlib_module_names, *OURS}
    known = importlib.metadata.packages_distributions()
    return {normal(PART_OF.get(name) or name_of(known.get(name, [name]), name)) for name in found}


def name_of(distributions: list[str], module: str) -> str:
    """Several may bring a module; then it is the one of its name."""
    return distributions[0] if len(distributions) == 1 else module


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    declared = {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}
    assert imported() - declared == BUILT


@pytest.mark.parametrize("command", ["export", "import"])
def test_without_transformers_a_model_goes_neither_out_nor_in(command, real_corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    given, _ = save_untrained("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
    source = given if command == "export" else tmp_path / "model"
    refused = CliRunner().invoke(main, [command, "hf", str(source), str(tmp_path / "new")])
    assert "transformers: `pip install 'megaptm[hub]'`" in refused.output
    assert not (tmp_path / "new").exists()
