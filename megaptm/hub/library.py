"""The libraries whose formats these are: extras of megaptm's."""

from __future__ import annotations

from typing import Any

from megaptm.errors import UserError


def transformers() -> Any:
    """The module; a `UserError` where it is not installed."""
    try:
        import transformers as module
    except ImportError:
        raise UserError("models of Hugging Face's format need transformers: `pip install 'megaptm[hub]'`.") from None
    return module


def h5py() -> Any:
    """The module; a `UserError` where it is not installed."""
    try:
        import h5py as module
    except ImportError:
        raise UserError("HDF5 files need h5py: `pip install 'megaptm[elmo]'`.") from None
    return module
