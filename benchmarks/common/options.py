"""Command-line options of all benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class Options(argparse.ArgumentParser):
    """Parser of options. `--short` selects small sizes, which take seconds and only show that the benchmark runs."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._short: dict[str, Any] = {}
        self.add_argument("--short", action="store_true", help="small sizes, to test that the benchmark runs")

    def add(self, name: str, *, default: Any, short: Any, **settings: Any) -> None:
        """Add an option with one default for full runs and another for `--short`."""
        action = self.add_argument(name, default=default, **({"type": type(default)} | settings))
        self._short[action.dest] = short

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        arguments = sys.argv[1:] if arguments is None else arguments
        if "--short" in arguments:
            self.set_defaults(**self._short)
        return self.parse_args(arguments)
