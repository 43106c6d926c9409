"""The folder of a family can be deleted, with those of the families that are derived from it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from megaptm.families import FAMILIES, FOLDERS
from megaptm.spec import Family
from tests import ROOT
from tests.families.deletion import copy_without, dependents

BUILD = """
import sys
import torch
from megaptm.bricks import HEADS
from megaptm.config import load, resolve_model
from megaptm.hub.counterparts import COUNTERPARTS
from megaptm.models import build_model
from megaptm.objectives import OBJECTIVES
assert HEADS and OBJECTIVES and COUNTERPARTS
for path in sys.argv[1:]:
    with torch.device("meta"):
        build_model(resolve_model(load(path)))
"""


def remaining_configs(deleted: set[str]) -> list[str]:
    """Return the tiny configs of the families that remain, without word vectors."""
    gone = {table.name for folder in deleted for table in import_module(f"megaptm.families.{folder}").FAMILIES}
    names = [name for name, table in FAMILIES.items() if isinstance(table, Family) and name not in gone]
    return [str(path) for name in names if (path := ROOT / "configs" / name / "tiny.yaml").exists()]


def check_without(deleted: set[str], folder: Path) -> None:
    """Load the registries and build the remaining models in a copy without these families."""
    copy = copy_without(deleted, folder)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *remaining_configs(deleted)],
        cwd=copy,
        env={"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_core_works_with_three_families(tmp_path: Path) -> None:
    """All but GPT, BERT and T5 are deleted at once."""
    check_without({*FOLDERS} - {"gpt", "bert", "t5"}, tmp_path)


@pytest.mark.drill
@pytest.mark.parametrize("folder", FOLDERS)
def test_family_can_be_deleted(folder: str, tmp_path: Path) -> None:
    check_without({folder} | dependents(folder), tmp_path)
