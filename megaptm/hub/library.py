"""Optional libraries of import and export, installed with megaptm's extras."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megaptm.errors import UserError


@contextmanager
def suppress_library_messages() -> Iterator[None]:
    """Suppress messages of transformers, its libraries and Python's `warnings`; megaptm raises errors for problems of a
    folder."""
    logging = import_transformers().utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def import_transformers() -> Any:
    """Return the module `transformers`. Raise UserError if it is not installed."""
    try:
        import transformers as module
    except ImportError:
        raise UserError("models of Hugging Face's format need transformers: `pip install 'megaptm[hub]'`.") from None
    return module
