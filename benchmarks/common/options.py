"""Command-line options of all benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class Options(argparse.ArgumentParser):
    """Return a parser. `--short` selects small sizes, which take seconds and only show that the benchmark runs."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._short: dict[str, Any] = {}
        self.add_argument("--short", action="store_true", help="small sizes: whether it runs, not what it measures")

    def add(self, name: str, *, default: Any, short: Any, **how: Any) -> None:
        """Add an option with one default for full runs and another for `--short`."""
        action = self.add_argument(name, default=default, **({"type": type(default)} | how))
        self._short[action.dest] = short

    def read(self, words: Sequence[str] | None = None) -> argparse.Namespace:
        words = sys.argv[1:] if words is None else words
        if "--short" in words:
            self.set_defaults(**self._short)
        return self.parse_args(words)
