"""The configs, machines, recipes and scripts that come with megaptm, wherever it is installed."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from megaptm.errors import UserError

_PACKAGE = Path(__file__).parents[1]
# In a checkout megaptm/shipped holds links to folders beside the package, which a wheel has as folders; who copies a
# checkout may leave links behind, as Ray does.
SHIPPED = _PACKAGE / "shipped" if (_PACKAGE / "shipped/configs").is_dir() else _PACKAGE.parent
"""Holds `configs` and `slurm`."""
CONFIGS = SHIPPED / "configs"


def find_config(path: Path) -> Path:
    """`path` where there is such a file; else the shipped one of that name: `gpt3/175b`, `configs/gpt3/175b.yaml`.

    A `UserError` with the nearest name where there is neither, `path` where no name is near.
    """
    return path if os.path.exists(path) else find_shipped(path, path.as_posix())


def find_shipped(path: Path, name: str) -> Path:
    """The shipped config of a name, for `path`, where there is no file; otherwise as `find_config`."""
    name, known = name.removeprefix("configs/").removesuffix(".yaml"), config_names()
    if name in known:
        return CONFIGS / f"{name}.yaml"
    if near := get_close_matches(name, known, n=1, cutoff=0.7):
        raise UserError(f"{path}: no such config file, and none of that name; did you mean {near[0]}?")
    return path


def config_names() -> list[str]:
    """`gpt3/175b` ...: configs and recipes."""
    found = (path.relative_to(CONFIGS) for path in CONFIGS.rglob("*.yaml"))
    return sorted(path.with_suffix("").as_posix() for path in found if path.parent.name not in ("", "machines"))
