"""Configs, machines, recipes and scripts that are installed with megaptm."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from megaptm.errors import UserError

_PACKAGE = Path(__file__).parents[1]
# In a checkout, megaptm/shipped has links to folders beside the package; a wheel has the folders. A copy of a checkout,
# such as Ray's, may lack the links.
SHIPPED = _PACKAGE / "shipped" if (_PACKAGE / "shipped/configs").is_dir() else _PACKAGE.parent
"""Folder of the shipped `configs` and `slurm`."""
CONFIGS = SHIPPED / "configs"


def find_config(path: Path) -> Path:
    """Find a config: return `path` if the file exists, else the shipped config of that name: `gpt3/175b`,
    `configs/gpt3/175b.yaml`.

    Without either, raises `UserError` with the nearest name, or returns `path` if no name is near.
    """
    return path if os.path.exists(path) else find_shipped(path, path.as_posix())


def find_shipped(path: Path, name: str) -> Path:
    """Return the shipped config `name` for `path`, which does not exist; otherwise like `find_config`."""
    name, known = name.removeprefix("configs/").removesuffix(".yaml"), _config_names()
    if name in known:
        return CONFIGS / f"{name}.yaml"
    if sizes := [size for size in known if size.startswith(f"{name}/")]:
        raise UserError(f"{path}: no such config file; {name} has {', '.join(sizes)}.")
    if near := get_close_matches(name, known, n=1, cutoff=0.7):
        raise UserError(f"{path}: no such config file, and none of that name; did you mean {near[0]}?")
    return path


def _config_names() -> list[str]:
    """Return the names of shipped configs and recipes: `gpt3/175b` ..."""
    paths = (path.relative_to(CONFIGS) for path in CONFIGS.rglob("*.yaml"))
    return sorted(path.with_suffix("").as_posix() for path in paths if path.parent.name not in ("", "machines"))
