"""Terminal output. Texts and names from corpora, runs and models are shown literally, never interpreted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from megaptm.errors import printable


class Console(rich.console.Console):
    """rich's console without markup and emoji codes: `[red]` and `:smile:` are text, and control characters are
    escaped.

    Styles are passed as `rich.text.Text` or `style=`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string on the console; its width is measured on the escaped text."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments of the console; those with `control` are rich's own sequences."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
