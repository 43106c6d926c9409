"""Read a config: its file, the files it extends, the command line's overrides; then validate and check the whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from megaptm.config.check import check
from megaptm.config.complain import sentence
from megaptm.config.schema import Config, resolved
from megaptm.config.yamls import Layer, read_file, read_override
from megaptm.errors import UserError

# Replaced as a whole, never merged: a config that names its corpora does not want its parent's as well.
WHOLE = frozenset({"data.mix"})


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config at `path` with `a.b=value` overrides applied, checked, and with the model's numbers written out."""
    layers = [*_extended(Path(path), ()), *map(read_override, overrides)]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        values = _merged(values, layer.values)
        origins.update(layer.origins)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise UserError(sentence(error, origins=origins, source=str(path))) from None
    check(config)
    return resolved(config)


def dump(config: Config) -> str:
    """The config as YAML that `load` reads back to an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def _extended(path: Path, above: tuple[Path, ...]) -> list[Layer]:
    """The layers of a file, furthest ancestor first."""
    here = path.resolve()
    if here in above:
        circle = " -> ".join(str(step) for step in (*above, here))
        raise UserError(f"{path} extends itself: {circle}; remove one `extends`.")
    layer = read_file(path)
    if "extends" not in layer.values:
        return [layer]
    parent = layer.values.pop("extends")
    if not isinstance(parent, str):
        raise UserError(f"{layer.origins['extends']}: extends takes one path, not {parent!r}.")
    return [*_extended(path.parent / parent, (*above, here)), layer]


def _merged(base: Any, change: Any, above: tuple[str, ...] = ()) -> Any:
    """`base` with the keys of `change` over it, section by section."""
    if not isinstance(base, dict) or not isinstance(change, dict) or ".".join(above) in WHOLE:
        return change
    return {**base, **{key: _merged(base.get(key), value, (*above, str(key))) for key, value in change.items()}}
