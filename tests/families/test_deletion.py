"""The folder of a family can be deleted, with those of the families that are derived from it; so can extensions."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from megaptm.families import FAMILIES, FOLDERS
from megaptm.spec import Family
from tests import ROOT
from tests.families.deletion import add_tests, copy_without, copy_without_extensions, dependents
from tests.tiers import CORE_FAMILIES, quick_tests

BUILD = """
import sys
from pathlib import Path
import torch
from data_pipeline.commands import run_build_command
from data_pipeline.inspection import inspect_corpus
from megaptm.models.head_costs import HEADS
from megaptm.config import load_config, resolve_model
from megaptm.console import Console
from megaptm.hub.counterparts import COUNTERPARTS
from megaptm.models.model import Model
from megaptm.plan.count import count_parameters
from megaptm.objectives import OBJECTIVES
assert HEADS and OBJECTIVES and COUNTERPARTS
Path("text.txt").write_text("Some words. " * 50)
run_build_command(["text.txt", "out=corpus", "workers=0", "tokenizer.vocabulary=270"], console=Console(quiet=True))
inspect_corpus("corpus", Console(quiet=True), objective=None, split="train", count=1, sequence=8)
for path in sys.argv[1:]:
    with torch.device("meta"):
        Model(resolve_model(load_config(path)))
    count_parameters(resolve_model(load_config(path)))
"""


def remaining_configs(deleted: set[str]) -> list[str]:
    """Return the tiny configs of the families that remain, without word vectors."""
    gone = {table.name for folder in deleted for table in import_module(f"megaptm.families.{folder}").FAMILIES}
    names = [name for name, table in FAMILIES.items() if isinstance(table, Family) and name not in gone]
    return [str(path) for name in names if (path := ROOT / "configs" / name / "tiny.yaml").exists()]


def run_in(copy: Path, *arguments: str) -> None:
    """Run Python in a copy, and require success."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]


def check_without(deleted: set[str], folder: Path) -> None:
    """Load the registries, and build a corpus and the remaining models in a copy without these families."""
    run_in(copy_without(deleted, folder), "-c", BUILD, *remaining_configs(deleted))


def test_core_works_with_three_families(tmp_path: Path) -> None:
    """All but GPT, BERT and T5 are deleted at once."""
    check_without({*FOLDERS} - CORE_FAMILIES, tmp_path)


def test_core_works_without_extensions(tmp_path: Path) -> None:
    copy = copy_without_extensions(tmp_path)
    run_in(copy, "-c", BUILD, *(str(ROOT / "configs" / name / "tiny.yaml") for name in ("gpt2", "bert", "t5")))


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_core_tests_pass_without_other_families(tmp_path: Path) -> None:
    copy = copy_without({*FOLDERS} - CORE_FAMILIES, tmp_path)
    add_tests(copy)
    run_in(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not drill", *quick_tests("core"))


@pytest.mark.drill
@pytest.mark.parametrize("folder", FOLDERS)
def test_family_can_be_deleted(folder: str, tmp_path: Path) -> None:
    check_without({folder} | dependents(folder), tmp_path)
