"""The config saved in a run folder equals the config of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.config import config_to_yaml, load_config
from megaptm.run.changes import compare_configs
from megaptm.run.folder import absolute_paths

CONFIGS = Path(__file__).parents[2] / "configs"
RUN_CONFIGS = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.parent.name not in ("corpora", "machines"))


@pytest.mark.parametrize("path", RUN_CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_run_of_shipped_config_resumes(path: Path, tmp_path: Path) -> None:
    config = absolute_paths(load_config(path))
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    assert compare_configs(load_config(tmp_path / "config.yaml"), config).faults == []


def test_null_is_saved(tmp_path: Path) -> None:
    """The default of the key is not null."""
    config = load_config("gpt2/tiny", ["train.hang_seconds=null"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "config.yaml") == config
    assert config.train.hang_seconds is None
