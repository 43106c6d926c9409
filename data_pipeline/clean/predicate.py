"""Filter with a user's Python function."""

from __future__ import annotations

from dataclasses import dataclass

from data_pipeline.clean.step import Filter, require
from data_pipeline.document import Document
from data_pipeline.functions import function_source_file, is_function, load_function


@dataclass(frozen=True)
class KeepIf(Filter):
    """Filter documents with a function.

    It takes a `Document`. It returns True or None to keep it, False to drop it, or a string, the drop reason.
    """

    call: str
    """Function that filters documents: `package.module:function`. Modules in the current directory can be imported."""

    def __post_init__(self) -> None:
        require(is_function(self.call), f"keep-if: call ({self.call}) must be written `package.module:function`.")

    def input_files(self) -> tuple[str, ...]:
        """Return the path of the module that defines the filter function. Modules that it imports are not tracked."""
        file = function_source_file(self.call, "keep-if")
        return () if file is None else (file,)

    def reason(self, document: Document) -> str | None:
        answer = load_function(self.call, "keep-if")(document)
        if answer is None or answer is True:
            return None
        if answer is False:
            return f"keep-if: {self.call}"
        if isinstance(answer, str):
            return f"keep-if: {answer}"
        raise ValueError(f"{self.call} returned {answer!r}, but must return True, False, None or a reason")
