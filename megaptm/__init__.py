"""megaptm: pre-training of language models, classic and large, on one engine. docs/library.md shows it as a library."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from megaptm.api import build_model, load, open_dataset, open_webdataset, train
    from megaptm.errors import UserError

__all__ = ["UserError", "__version__", "build_model", "load", "open_dataset", "open_webdataset", "train"]


def __getattr__(name: str) -> Any:
    # Later: configs and the command line do without torch, and start in a blink.
    if name == "UserError":
        from megaptm.errors import UserError

        return UserError
    if name in __all__:
        from megaptm import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Train(ModuleType):
    def __call__(self, config: Any, **overrides: Any) -> int:
        """Train a run: see `megaptm.api.train`."""
        from megaptm.api import train as train_run

        return train_run(config, **overrides)


# `megaptm.train(...)` trains, although the package of that name is found in its place.
import_module("megaptm.train").__class__ = _Train
