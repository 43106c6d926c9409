"""Fixtures that tests of several parts share, and which tests may run beside which."""

from pathlib import Path

import pytest

from tests.realtext import real_corpus
from tests.storage.server import faults, s3

__all__ = ["faults", "real_corpus", "s3"]

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (pytest-xdist) each takes a folder's tests at a time, for the sake of what they share.

    Those of real clusters come first, because they take longest and mostly wait: what computes runs beside them.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.path.relative_to(TESTS).parts[0]))
    items.sort(key=lambda item: "real" not in item.path.relative_to(TESTS).parts)
