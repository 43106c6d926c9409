"""gigatoken beside Hugging Face's library: BPE a hundred times faster, where it gives the same ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from megaptm.tokenizers.probe import probe_texts

if TYPE_CHECKING:
    import gigatoken
    import tokenizers

# These leave ASCII text as it is.
NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
VOCABULARY_TRIED = 4096
"""Tokens whose texts are encoded again before gigatoken is trusted."""


class Gigatoken:
    """Encodes what it can be sure of; None for a text that Hugging Face's library must encode."""

    def __init__(self, fast: gigatoken.Tokenizer, content: Mapping[str, Any], library: tokenizers.Tokenizer):
        self.fast = fast
        kind = (content.get("normalizer") or {}).get("type")
        # gigatoken's own NFC knows another version of Unicode; so the library normalizes, where there is need.
        self._normalizer = library.normalizer if is_byte_level(content) else None
        self._ascii_is_normal = kind in NORMAL_FORMS
        named = [token["content"] for token in content.get("added_tokens", ()) if not token.get("special")]
        self._added = re.compile("|".join(map(re.escape, named))) if named else None
        self._lengths = _byte_lengths(library) if _keeps_bytes(content) else None

    @property
    def has_ends(self) -> bool:
        """Whether `encode_batch_with_ends` has an answer for most texts."""
        return self._lengths is not None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """int32 [tokens] for each text."""
        return [self._encode(text) for text in texts]

    def encode_batch_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """int32 [tokens] twice for each text: ids, and the character after each token's last."""
        return [self._encode_with_ends(text) for text in texts]

    def _encode(self, text: str) -> np.ndarray | None:
        if self._added is not None and self._added.search(text):
            return None
        if self._normalizer is not None and not (self._ascii_is_normal and text.isascii()):
            text = self._normalizer.normalize_str(text)
        # A view: its uint32 are ids far below 2**31.
        return self.fast.encode(text).view(np.int32)

    def _encode_with_ends(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        normal = self._normalizer is None or (self._ascii_is_normal and text.isascii())
        if self._lengths is None or not normal:
            return None
        if (ids := self._encode(text)) is None:
            return None
        # The tokens' bytes put end to end are the text's, unless the vocabulary lacks a byte.
        ends, content = np.cumsum(self._lengths[ids], dtype=np.int32), text.encode()
        if len(content) != (ends[-1] if len(ends) else 0):
            return None
        if not text.isascii():
            # A character belongs to every token that has a byte of it.
            begins = (np.frombuffer(content, dtype=np.uint8) & 0xC0) != 0x80
            ends = np.cumsum(begins, dtype=np.int32)[ends - 1] if len(ends) else ends
        return ids, ends


def find_gigatoken(content: Mapping[str, Any], library: tokenizers.Tokenizer) -> Gigatoken | None:
    """gigatoken for the tokenizer of this tokenizer.json, or None where it is not sure to give the same ids."""
    model = content["model"]
    added = [token for token in content.get("added_tokens", ()) if not token.get("special")]
    byte_level = is_byte_level(content)
    if (
        model["type"] != "BPE"
        or not (byte_level or model.get("byte_fallback"))
        or any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        # Sought in the normalized text, which may hold them where the text does not.
        or (content.get("normalizer") and any(token.get("normalized") for token in added))
    ):
        return None
    import gigatoken

    # Without added tokens it cannot find them in text; a text that has one goes to the library.
    plain = {**content, "added_tokens": [], "post_processor": None}
    if byte_level:
        plain["normalizer"] = None
    try:
        found = Gigatoken(gigatoken.Tokenizer.from_json(json.dumps(plain)), content, library)
    except (RuntimeError, ValueError):
        return None  # a splitting rule or an option it does not have
    return found if _same_ids(found, library) else None


def is_byte_level(content: Mapping[str, Any]) -> bool:
    """Whether words are split by one rule and spelled in GPT-2's alphabet of bytes, as gigatoken understands it."""
    part = content.get("pre_tokenizer") or {}
    if part.get("type") == "ByteLevel":
        return part.get("use_regex", True)
    parts = part.get("pretokenizers", ())
    if part.get("type") != "Sequence" or len(parts) < 2:
        return False
    *splits, last = parts
    return (
        last.get("type") == "ByteLevel"
        and not last.get("use_regex", True)
        and not last.get("add_prefix_space", True)
        and all(
            split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
            for split in splits
        )
    )


def _keeps_bytes(content: Mapping[str, Any]) -> bool:
    part = content.get("pre_tokenizer") or {}
    return is_byte_level(content) and not (part.get("type") == "ByteLevel" and part.get("add_prefix_space", True))


def _byte_lengths(library: tokenizers.Tokenizer) -> np.ndarray:
    """int32 [vocabulary]: bytes of each token; a letter of the byte-level alphabet is a byte."""
    ids = library.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(ids.values()) + 1, dtype=np.int32)
    for token, id_ in ids.items():
        lengths[id_] = len(token)
    return lengths


def _same_ids(found: Gigatoken, library: tokenizers.Tokenizer) -> bool:
    """Equal ids for the probe's texts, and for those that the vocabulary itself spells."""
    vocabulary = range(0, library.get_vocab_size(), max(1, library.get_vocab_size() // VOCABULARY_TRIED))
    spelled = library.decode_batch([[id_] for id_ in vocabulary], skip_special_tokens=False)
    texts = [*probe_texts(), "".join(spelled), " ".join(spelled)]
    expected = library.encode_batch_fast(texts, add_special_tokens=False)
    pairs = zip(found.encode_batch(texts), expected, strict=True)
    return all(ids is None or ids.tolist() == encoding.ids for ids, encoding in pairs)
