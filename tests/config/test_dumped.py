"""The config in a run's folder, by which its ranks train and its command goes on, is the one that was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.config import dump, load
from megaptm.run.changes import compare
from megaptm.run.folder import absolute_paths

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.parent.name not in ("corpora", "machines"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_run_of_a_shipped_config_goes_on_by_its_command(path: Path, tmp_path: Path) -> None:
    given = absolute_paths(load(path))
    (tmp_path / "config.yaml").write_text(dump(given))
    assert compare(load(tmp_path / "config.yaml"), given).faults == []


def test_what_is_switched_off_by_null_stays_off(tmp_path: Path) -> None:
    """Where a key that is left out says something else."""
    given = load("gpt2/tiny", ["train.hang_seconds=null"])
    (tmp_path / "config.yaml").write_text(dump(given))
    assert load(tmp_path / "config.yaml") == given
    assert given.train.hang_seconds is None
