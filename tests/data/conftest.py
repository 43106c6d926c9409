"""Fixtures of this folder."""

from tests.storage.server import faults, s3

__all__ = ["faults", "s3"]
