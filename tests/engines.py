"""Engines for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megaptm.parallel.engine import Engine


def filled_engine(*args: Any, **options: Any) -> Engine:
    """Build an engine (`parallel.build.build_engine`) with initial values."""
    from megaptm.parallel.build import build_engine

    engine = build_engine(*args, **options)
    engine.init_weights()
    return engine
