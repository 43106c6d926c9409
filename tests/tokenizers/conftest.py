"""Real texts (three modules of Python's standard library) and tokenizers trained on them."""

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from megaptm.tokenizers import KINDS, Tokenizer, train_tokenizer_on_texts

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
"""Name -> (kind, training options): each kind with its defaults, and with the options of published families."""


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [Path(module.__file__).read_text(encoding="utf-8") for module in (argparse, json, textwrap)]


@pytest.fixture(scope="session")
def trained(texts: list[str]) -> dict[str, Tokenizer]:
    """Name of a variant -> its tokenizer."""
    return {name: train_tokenizer_on_texts(kind, texts, **options) for name, (kind, options) in VARIANTS.items()}
