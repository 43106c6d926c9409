"""Fixtures that tests of several parts share."""

from tests.realtext import real_corpus

__all__ = ["real_corpus"]
