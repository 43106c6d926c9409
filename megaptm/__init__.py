"""megaptm: pre-training of language models, classic and large, on one engine. docs/library.md shows it as a library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from megaptm.api import allow_code, build_model, load, load_words, open_dataset, open_webdataset, pretrain
    from megaptm.errors import UserError
    from megaptm.train.callbacks import Callback

__all__ = [
    "Callback",
    "UserError",
    "__version__",
    "allow_code",
    "build_model",
    "load",
    "load_words",
    "open_dataset",
    "open_webdataset",
    "pretrain",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # Later: configs and the command line do without torch, and start in a blink.
    if name == "UserError":
        from megaptm.errors import UserError

        return UserError
    if name == "Callback":
        from megaptm.train.callbacks import Callback

        return Callback
    if name in __all__:
        from megaptm import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
