"""The family of docs/add-a-family.md, added to a copy of the repository, passes the tests of all families."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.page_edits import edited_copy, edits

PAGE = ROOT / "docs" / "add-a-family.md"

COMPARE = """
import numpy as np
import torch

from megaptm.families import CATALOGUE, find_family
from megaptm.models.initial import fill
from megaptm.models.model import build_model
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from tests.models.tiny import tiny_spec
from tests.families.test_wren import SPECIAL

CATALOGUE["outside"] = find_family("birds.wren:WREN")
logits = []
for name in ("wren", "outside"):
    model = build_model(tiny_spec(name)).eval()
    fill(model, seed=1)
    segments = torch.zeros(2, 12, dtype=torch.int64)
    logits.append(model.logits({"tokens": torch.arange(24).view(2, 12), "segments": segments})["mlm"])
torch.testing.assert_close(*logits)
text = [DocumentSlice(np.arange(90), slots=2)]
samples = [
    objective.make(text, SampleContext(SPECIAL, np.random.default_rng(3), 92, document_mask=True))
    for objective in (OBJECTIVES["masked-lm-even-spans"], build_objective("birds.wren:SPANS"))
]
for field in samples[0]:
    np.testing.assert_array_equal(samples[0][field], samples[1][field])
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return edited_copy(PAGE, tmp_path_factory.mktemp("tree"))


def run(tree: Path, *command: str) -> str:
    """Return the output of a Python module that runs in the copy. It must succeed."""
    # The copy comes first on the path. PYTEST_ADDOPTS applies to this process only.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def files_with_families(tree: Path) -> list[str]:
    """Return the test files that read the catalogue. The collection of all files would take longer than the tests."""
    folders = ("config", "families", "hub", "models", "parity", "plan")
    files = [file for folder in folders for file in sorted((tree / "tests" / folder).glob("test_*.py"))]
    return [str(file.relative_to(tree)) for file in files if "CATALOGUE" in file.read_text() or "wren" in file.name]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_command_of_the_page_applies_it():
    [command] = [line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if "| git apply" in line]
    words = ["bash", "-o", "pipefail", "-c", f"{command} --check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_family_of_the_page_passes_the_tests_of_all_families(tree):
    """Parameter counts, model, learning, conversion, pipeline stages, and its own tests."""
    output = run(tree, "pytest", "-p", "no:cacheprovider", "-vv", "-k", "wren", *files_with_families(tree))
    passed = set(re.findall(r"^(tests/\S+\.py)::\S+ PASSED", output, re.MULTILINE))
    assert {
        "tests/config/test_recipes.py",
        "tests/families/test_wren.py",
        "tests/hub/test_huggingface.py",
        "tests/models/test_parts.py",
        "tests/models/test_visibility.py",
        "tests/parity/test_families.py",
        "tests/plan/test_count.py",
    } <= passed


def test_family_of_an_own_package_is_the_same_model_with_the_same_masks(tree, tmp_path):
    [own_module] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / "wren.py").write_text(own_module)
    (tmp_path / "compare.py").write_text(COMPARE)
    words = [sys.executable, "compare.py"]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tmp_path}"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_family_of_the_page_is_the_same_on_tensor_and_pipeline_ranks(tree):
    test = "tests/layouts/test_layouts.py::test_layout_changes_no_result[wren-TP2+SPxPP2 recompute]"
    assert "1 passed" in run(tree, "pytest", "-p", "no:cacheprovider", test)


def test_code_of_the_page_passes_linter_and_mypy(tree):
    changed = sorted({edit.path for edit in edits(PAGE) if edit.path.endswith(".py")})
    run(tree, "ruff", "check", "--no-cache", *changed)
    run(tree, "ruff", "format", "--no-cache", "--check", *changed)
    cache = ROOT / ".mypy_cache"
    if cache.is_dir():
        shutil.copytree(cache, tree / cache.name)
    run(tree, "mypy", "megaptm/families", "megaptm/objectives")
