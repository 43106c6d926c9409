"""Label names as a vocabulary, used by image corpora instead of a text tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megaptm.tokenizers.tokenizer import Tokenizer


def make_label_tokenizer(names: Sequence[str]) -> Tokenizer:
    """Make a tokenizer in which `names[i]` is the token with id i. Names may contain spaces and must be unique."""
    ids = {name: number for number, name in enumerate(names)}
    assert len(ids) == len(names)
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"), None)
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    content: dict[str, Any] = {"version": "1.0", **parts, "added_tokens": [], "model": model}
    return Tokenizer(content, {"tokenizer_class": "PreTrainedTokenizerFast"})
