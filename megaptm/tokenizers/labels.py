"""Names of labels as a vocabulary: what a corpus of images has in the place of a tokenizer of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megaptm.tokenizers.tokenizer import Tokenizer


def label_tokenizer(names: Sequence[str]) -> Tokenizer:
    """Label i is called `names[i]`; each name is one token, spaces in it included. No two may be equal."""
    ids = {name: number for number, name in enumerate(names)}
    assert len(ids) == len(names)
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"), None)
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    content: dict[str, Any] = {"version": "1.0", **parts, "added_tokens": [], "model": model}
    return Tokenizer(content, {"tokenizer_class": "PreTrainedTokenizerFast"})
