"""A small real text: three modules of the installed Python's own library."""

import argparse
import json
import textwrap
from pathlib import Path

import pytest

from megaptm.tokenizers import Tokenizer, train


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [Path(module.__file__).read_text(encoding="utf-8") for module in (argparse, json, textwrap)]


@pytest.fixture(scope="session")
def trained(texts: list[str]) -> dict[str, Tokenizer]:
    """One tokenizer of each kind."""
    return {
        "bpe": train("bpe", texts, vocabulary=900),
        "byte-bpe": train("byte-bpe", texts, vocabulary=600),
        "wordpiece": train("wordpiece", texts, vocabulary=600),
        "unigram": train("unigram", texts, vocabulary=600, sentinels=20),
    }
