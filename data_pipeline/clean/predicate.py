"""A rule that the user wrote in Python."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from data_pipeline.clean.step import Filter, require
from data_pipeline.document import Document
from megaptm.errors import UserError


@dataclass(frozen=True)
class KeepIf(Filter):
    """Ask a function about each document.

    It takes a `Document` and says True or None to keep it, False to leave it out, or a sentence: why it is left out.
    """

    call: str
    """`package.module:function`; modules of the current directory are found too."""

    def __post_init__(self) -> None:
        good = self.call.count(":") == 1 and all(self.call.split(":"))
        require(good, f"keep-if: call ({self.call}) must be written `package.module:function`.")

    def inputs(self) -> tuple[str, ...]:
        """The module's file; what it imports is not looked at."""
        file = getattr(sys.modules[_function(self.call).__module__], "__file__", None)
        return () if file is None else (file,)

    def reason(self, document: Document) -> str | None:
        try:
            answer = _function(self.call)(document)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"keep-if: {self.call} failed on document {document.source} ({type(error).__name__}: {error}): mend it."
            ) from error
        if answer is None or answer is True:
            return None
        if answer is False:
            return f"keep-if: {self.call}"
        if isinstance(answer, str):
            return f"keep-if: {answer}"
        raise UserError(f"keep-if: {self.call} answered {answer!r}: it must say True, False, None or a reason.")


@lru_cache(maxsize=16)
def _function(call: str) -> Callable[[Document], object]:
    name, function = call.split(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(name), function)
    except ImportError as error:
        raise UserError(f"keep-if: module `{name}` cannot be imported ({error}): correct `call`.") from None
    except AttributeError:
        raise UserError(f"keep-if: module `{name}` has no function `{function}`: correct `call`.") from None
    if not callable(found):
        raise UserError(f"keep-if: `{call}` is not a function: correct `call`.")
    return found
