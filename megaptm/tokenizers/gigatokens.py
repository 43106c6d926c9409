"""Encode BPE with gigatoken, which is a hundred times as fast as Hugging Face's library, if it gives the same ids."""

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

# Normalizers that do not change ASCII text.
NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
VOCABULARY_TRIED = 4096
"""Number of tokens whose texts are encoded for comparison before gigatoken is used."""


class Gigatoken:
    """Encoder by gigatoken for the texts on which it is exact. It returns None for a text that Hugging Face's library
    must encode."""

    def __init__(self, fast: gigatoken.Tokenizer, content: Mapping[str, Any], library: tokenizers.Tokenizer):
        self.fast = fast
        kind = (content.get("normalizer") or {}).get("type")
        # gigatoken's NFC uses another Unicode version, so the library normalizes if necessary.
        self._normalizer = library.normalizer if _is_byte_level(content) else None
        self._ascii_is_normal = kind in NORMAL_FORMS
        named = [token["content"] for token in content.get("added_tokens", ()) if not token.get("special")]
        self._added = re.compile("|".join(map(re.escape, named))) if named else None
        self._lengths = _byte_lengths(library) if _keeps_bytes(content) else None

    @property
    def has_ends(self) -> bool:
        """Whether `encode_batch_with_ends` of gigatoken supports most texts."""
        return self._lengths is not None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """Encode texts with gigatoken: return int32 [tokens] for each."""
        return [self._encode_text(text) for text in texts]

    def encode_batch_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Encode texts with gigatoken: return for each int32 [tokens] ids, and int32 [tokens] end of each token in
        characters."""
        return [self._encode_with_ends(text) for text in texts]

    def _encode_text(self, text: str) -> np.ndarray | None:
        if self._added is not None and self._added.search(text):
            return None
        if self._normalizer is not None and not (self._ascii_is_normal and text.isascii()):
            text = self._normalizer.normalize_str(text)
        # Reinterpreted without a copy: uint32 ids are far below 2**31.
        return self.fast.encode(text).view(np.int32)

    def _encode_with_ends(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        normal = self._normalizer is None or (self._ascii_is_normal and text.isascii())
        if self._lengths is None or not normal:
            return None
        if (ids := self._encode_text(text)) is None:
            return None
        # The concatenated bytes of the tokens equal the text, unless the vocabulary lacks a byte.
        ends, content = np.cumsum(self._lengths[ids], dtype=np.int32), text.encode()
        if len(content) != (ends[-1] if len(ends) else 0):
            return None
        if not text.isascii():
            # A character belongs to every token that contains one of its bytes.
            starts_character = (np.frombuffer(content, dtype=np.uint8) & 0xC0) != 0x80
            ends = np.cumsum(starts_character, dtype=np.int32)[ends - 1] if len(ends) else ends
        return ids, ends


def find_gigatoken(content: Mapping[str, Any], library: tokenizers.Tokenizer) -> Gigatoken | None:
    """Return gigatoken for this tokenizer.json, or None if it may give other ids than Hugging Face's library."""
    model = content["model"]
    added = [token for token in content.get("added_tokens", ()) if not token.get("special")]
    byte_level = _is_byte_level(content)
    if (
        model["type"] != "BPE"
        or not (byte_level or model.get("byte_fallback"))
        or any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        # Such tokens are searched in the normalized text, which may contain them even if the text does not.
        or (content.get("normalizer") and any(token.get("normalized") for token in added))
    ):
        return None
    import gigatoken

    # Without added tokens, gigatoken cannot find them in text; a text with one is encoded by the library.
    bare = {**content, "added_tokens": [], "post_processor": None}
    if byte_level:
        bare["normalizer"] = None
    try:
        fast = Gigatoken(gigatoken.Tokenizer.from_json(json.dumps(bare)), content, library)
    except (RuntimeError, ValueError):
        return None  # it does not support a splitting rule or an option
    return fast if _same_ids(fast, library) else None


def _is_byte_level(content: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json splits words by one rule and encodes them in GPT-2's byte alphabet, as gigatoken
    supports it."""
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
    return _is_byte_level(content) and not (part.get("type") == "ByteLevel" and part.get("add_prefix_space", True))


def _byte_lengths(library: tokenizers.Tokenizer) -> np.ndarray:
    """Return the bytes of each token, int32 [vocabulary]. Each letter of the byte-level alphabet is one byte."""
    ids = library.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(ids.values()) + 1, dtype=np.int32)
    for token, id_ in ids.items():
        lengths[id_] = len(token)
    return lengths


def _same_ids(fast: Gigatoken, library: tokenizers.Tokenizer) -> bool:
    """Whether gigatoken and Hugging Face's library give the same ids for the probe texts, and for texts from the
    vocabulary."""
    vocabulary = range(0, library.get_vocab_size(), max(1, library.get_vocab_size() // VOCABULARY_TRIED))
    spelled = library.decode_batch([[id_] for id_ in vocabulary], skip_special_tokens=False)
    texts = [*probe_texts(), "".join(spelled), " ".join(spelled)]
    expected = library.encode_batch_fast(texts, add_special_tokens=False)
    pairs = zip(fast.encode_batch(texts), expected, strict=True)
    return all(ids is None or ids.tolist() == encoding.ids for ids, encoding in pairs)
