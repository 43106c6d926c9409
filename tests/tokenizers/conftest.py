"""A small real text: three modules of the installed Python's own library."""

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from megaptm.tokenizers import KINDS, Tokenizer, train

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {"vocabulary": 900 if kind == "bpe" else 600}) for kind in KINDS},
    "unigram": ("unigram", {"vocabulary": 600, "sentinels": 20}),
    "PaLM": ("bpe", {"vocabulary": 900, "digits": True}),
    "RoBERTa": ("byte-bpe", {"vocabulary": 600, "specials": "roberta"}),
    "DeBERTa": ("byte-bpe", {"vocabulary": 600, "specials": "deberta"}),
    "ALBERT": ("unigram", {"vocabulary": 600, "specials": "albert", "lowercase": True}),
    "DeBERTa v3": ("unigram", {"vocabulary": 600, "specials": "deberta"}),
    "cased BERT": ("wordpiece", {"vocabulary": 600, "lowercase": False}),
    "words of BERT": ("words", {"vocabulary": 600, "specials": "bert", "lowercase": True}),
}
"""Each kind as it is by default, and with what published families have instead."""


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [Path(module.__file__).read_text(encoding="utf-8") for module in (argparse, json, textwrap)]


@pytest.fixture(scope="session")
def trained(texts: list[str]) -> dict[str, Tokenizer]:
    """A tokenizer of each variant."""
    return {name: train(kind, texts, **options) for name, (kind, options) in VARIANTS.items()}
