"""The tests of megaptm; `make test`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout."""
