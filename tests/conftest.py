"""Fixtures that tests of several parts share."""

from tests.realtext import real_corpus
from tests.storage.server import faults, s3

__all__ = ["faults", "real_corpus", "s3"]
