"""Destinations to which a run sends its checkpoints with the logins of the user."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megaptm.config import Config
from megaptm.errors import UserError

TRUSTED = "MEGAPTM_UPLOADS"
"""Environment variable with the destinations that the user named, a JSON list. Child processes inherit it."""


def _upload_targets(config: Config) -> dict[str, str]:
    """Return the destinations of a run's checkpoints, by key of the config."""
    targets = {"checkpoint.upload_to": config.checkpoint.upload_to, "hub.push_to": config.hub.push_to}
    return {key: target for key, target in targets.items() if target is not None}


def trust_uploads(source: Path | Mapping[str, Any], overrides: Sequence[str], config: Config) -> None:
    """Trust the destinations that the user typed, or wrote in a config. Destinations in a run's folder may come from
    another user."""
    is_run = isinstance(source, Path) and source.is_dir()
    typed = {override.partition("=")[0] for override in overrides}
    named = [target for key, target in _upload_targets(config).items() if key in typed or not is_run]
    if named:
        os.environ[TRUSTED] = json.dumps(sorted({*_trusted(), *named}))


def refuse_untrusted_uploads(config: Config) -> None:
    """Raise `UserError` if only the folder of a run names a destination of its checkpoints."""
    for key, target in _upload_targets(config).items():
        if target not in _trusted():
            raise UserError(
                f"{key} ({target}) is named only by the folder {config.run}, which may come from someone else, and "
                f"would receive checkpoints with your login: add {key}={target} if you trust it, or {key}=null."
            )


def _trusted() -> list[str]:
    try:
        names = json.loads(os.environ.get(TRUSTED, "[]"))
    except ValueError:
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
