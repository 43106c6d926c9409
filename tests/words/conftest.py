"""Corpus with planted synonyms and analogies, built once."""

import pytest

from tests.words import planted


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return planted.build(tmp_path_factory.mktemp("planted") / "text")
