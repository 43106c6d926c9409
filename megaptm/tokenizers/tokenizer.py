"""Tokenizer of any kind: Hugging Face's files and ids, encoded by the fastest library that gives exactly these ids."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megaptm.errors import UserError
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.storage import write_atomically
from megaptm.tokenizers.files import CONFIG_FILE, REMEDY, TOKENIZER_FILE, read_tokenizer_files
from megaptm.tokenizers.gigatokens import Gigatoken, find_gigatoken
from megaptm.tokenizers.normalization import (
    collapse_precompiled,
    expand_precompiled,
    reject_growing_normalizer,
    without_prefix,
)
from megaptm.tokenizers.special import find_role_names, read_special_tokens
from megaptm.tokenizers.word_cache import MARK, WordCache, convert_library_errors, ids_and_ends, splits_at_spaces

if TYPE_CHECKING:
    import tokenizers

GENERAL_CLASS = "PreTrainedTokenizerFast"
"""transformers' class that reads tokenizer.json unchanged. Classes of a family rebuild parts of it."""
TRAINED_LAYOUT = "trained_post_processor"
"""Key of tokenizer_config.json with the post-processor of the corpora's tokenizer, if that in tokenizer.json
differs."""


class Tokenizer:
    """Converts text to ids and back.

    Text never becomes a special token: `<|endoftext|>` in a document is encoded as characters and not as the id that
    ends a document (transformers' `split_special_tokens=True`).
    """

    def __init__(self, content: Mapping[str, Any], config: Mapping[str, Any]):
        """Create the tokenizer from the parsed tokenizer.json (`content`) and tokenizer_config.json (`config`, which
        may be empty)."""
        # Truncation and padding that were saved with a tokenizer are not part of the vocabulary.
        self.content = {**content, "truncation": None, "padding": None}
        if content.get("normalizer"):
            # Tokenizers that megaptm trained in earlier versions used the library's own folds.
            published = config.get("tokenizer_class") != GENERAL_CLASS
            self.content["normalizer"] = expand_precompiled(content["normalizer"], folds=published)
        self.config = dict(config)

    @cached_property
    def kind(self) -> str:
        """Return the kind of the tokenizer, one of `KINDS`."""
        model = self.content["model"]
        if model["type"] != "BPE":
            return {"WordLevel": "words"}.get(model["type"], model["type"].lower())
        if _contains_type(self.content.get("pre_tokenizer"), "ByteLevel"):
            return "byte-bpe"
        return "char-bpe" if model.get("end_of_word_suffix") else "bpe"

    @cached_property
    def special(self) -> SpecialTokens:
        return read_special_tokens(self.content, self.config, self.library.get_vocab(with_added_tokens=True))

    @cached_property
    def unknown(self) -> int | None:
        """Return the id of the unknown token; None without one."""
        ids: dict[str, int] = self.library.get_vocab(with_added_tokens=True)
        name = find_role_names(self.config, ids).get("unknown")
        return None if name is None else ids[name]

    @property
    def vocabulary(self) -> int:
        """Return the size of the tokenizer's vocabulary: one more than the largest id."""
        return self.special.size

    def for_manifest(self) -> dict[str, str | int]:
        """Return the description of the tokenizer for the manifest of a corpus."""
        return {"kind": self.kind, "vocabulary": self.vocabulary, "fingerprint": self.fingerprint}

    @cached_property
    def fingerprint(self) -> str:
        """Return the fingerprint of the tokenizer: the sha256 of tokenizer.json, independent of its formatting.

        Two changes do not alter it: another post-processor, made by an export, and parts with SentencePiece's result in
        place of a `Precompiled` part.
        """
        content = {**self.content, "normalizer": collapse_precompiled(self.content.get("normalizer"))}
        if TRAINED_LAYOUT in self.config:
            content = {**content, "post_processor": self.config[TRAINED_LAYOUT]}
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """Return the Hugging Face tokenizer. It defines the ids, decodes, and encodes if no faster exact library
        exists."""
        import tokenizers

        # Without the post-processor, which would shift offsets of tokens.
        library = tokenizers.Tokenizer.from_str(json.dumps({**self.content, "post_processor": None}))
        library.encode_special_tokens = True
        if names := self._names_found_in_text(library):
            library.pre_tokenizer = _split_names(names, after=library.pre_tokenizer)
        return library

    def _names_found_in_text(self, library: tokenizers.Tokenizer) -> list[str]:
        """Return the special tokens whose names in a text the model would encode as these tokens.

        Unigram models have them as pieces. Others find them if no pre-tokenizer divides them (`WhitespaceSplit`).
        """
        names = [token["content"] for token in self.content.get("added_tokens", ()) if token.get("special")]
        if self.kind == "unigram":
            return names
        names = [name for name in names if name != self.content["model"].get("unk_token")]
        try:
            encodings = library.encode_batch(names, add_special_tokens=False)
        except Exception:  # the library's, for a model without an unknown token, which knows no name
            return []
        return [name for name, each in zip(names, encodings, strict=True) if library.token_to_id(name) in each.ids]

    @cached_property
    def _gigatoken(self) -> Gigatoken | None:
        return find_gigatoken(self.content, self.library)

    @cached_property
    def _words(self) -> WordCache | None:
        return (
            WordCache(self.content, self.library, ends=False) if splits_at_spaces(self.content, self.library) else None
        )

    @cached_property
    def _words_with_ends(self) -> WordCache | None:
        return (
            WordCache(self.content, self.library, ends=True) if splits_at_spaces(self.content, self.library) else None
        )

    def encode(self, text: str) -> np.ndarray:
        """Encode one text as int32 [tokens] ids, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_continuation(self, text: str) -> np.ndarray:
        """Encode text that follows a special token, as within a text: without the space that some kinds add before."""
        inner = self._without_prefix
        if inner is None:
            return self.encode(text)
        if not np.array_equal(inner.encode(" a"), inner.encode("a")):  # no part removes spaces
            return inner.encode(text)
        word, space, following = re.fullmatch(r"(\S*)(\s*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        return np.concatenate([inner.encode(word), self.encode(space + following)])

    @cached_property
    def _without_prefix(self) -> Tokenizer | None:
        """Return the tokenizer without the space that it adds before a text; None if it adds none."""
        content = {
            **self.content,
            "normalizer": without_prefix(self.content.get("normalizer")),
            "pre_tokenizer": without_prefix(self.content.get("pre_tokenizer")),
        }
        return None if content == self.content else Tokenizer(content, self.config)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode texts: return int32 [tokens] for each, without special tokens. The arrays may be read-only views."""
        faster = self._gigatoken or self._words
        with convert_library_errors(texts):
            encoded: list[Any] = faster.encode_batch(texts) if faster else [None] * len(texts)
            remaining = [number for number, ids in enumerate(encoded) if ids is None]
            encodings = self.library.encode_batch_fast(
                [texts[number] for number in remaining], add_special_tokens=False
            )
        for index, encoding in zip(remaining, encodings, strict=True):
            encoded[index] = np.array(encoding.ids, dtype=np.int32)
        return encoded

    def encode_batch_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Encode texts: return for each int32 [tokens] ids, and int32 [tokens] end of each token in characters.

        Ends never decrease. Tokens that share a character have the same end.
        """
        faster = self._gigatoken if self._gigatoken and self._gigatoken.has_ends else self._words_with_ends
        with convert_library_errors(texts):
            encoded: list[Any] = faster.encode_batch_with_ends(texts) if faster else [None] * len(texts)
            remaining = [number for number, ids in enumerate(encoded) if ids is None]
            encodings = self.library.encode_batch([texts[number] for number in remaining], add_special_tokens=False)
        for index, encoding in zip(remaining, encodings, strict=True):
            encoded[index] = ids_and_ends([encoding], self.library.token_to_id(MARK))[:2]
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text. Special tokens are decoded to their names."""
        return self.library.decode([int(id_) for id_ in ids], skip_special_tokens=False)

    def name(self, id_: int) -> str:
        """Return the name of a token; for an unused id, the id."""
        name: str | None = self.library.id_to_token(id_)
        return f"({id_})" if name is None else name

    def format_token(self, id_: int) -> str:
        """Return a readable form of a token: its name or, for byte-level names, its quoted text."""
        return repr(self.decode([id_])) if self.kind == "byte-bpe" else self.name(id_)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the tokenizer to a folder that `load_tokenizer` and `AutoTokenizer.from_pretrained` read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in ((TOKENIZER_FILE, self.content), (CONFIG_FILE, self.config)):
            write_atomically(folder / name, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def find_first_tokens(ends: np.ndarray, part_starts: np.ndarray) -> np.ndarray:
    """Return int32 [parts or fewer]: index of the first token of each part of a text.

    - `ends`: end of each token in characters, from `encode_batch_with_ends`.
    - `part_starts`: first character of each part, ascending.

    A part without a token of its own (white space, for WordPiece) is merged with the part before it.
    """
    starts = np.searchsorted(ends, part_starts, side="right").astype(np.int32)
    starts = starts[starts < len(ends)]
    return starts[np.diff(starts, prepend=-1) > 0]


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer in a folder or a bare tokenizer.json; raise `UserError` if there is none or it is invalid."""
    file, content, config = read_tokenizer_files(path)
    try:
        tokenizer = Tokenizer(content, config)
        _ = tokenizer.kind, tokenizer.special  # parsed here, so that the error names the file
        reject_growing_normalizer(content.get("normalizer"))
        _check_post_processor(content)
    except UserError:
        raise
    except BaseException as error:  # the library raises bare Exception, and its panics are BaseException
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise UserError(f"{file} is not a valid tokenizer ({error}): {REMEDY}.") from None
    return tokenizer


def _check_post_processor(content: dict[str, Any]) -> None:
    """Raise `ValueError` if the library cannot parse the special tokens around a text, which only exports need."""
    import tokenizers

    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    try:
        tokenizers.Tokenizer.from_str(json.dumps({"model": model, "post_processor": content.get("post_processor")}))
    except Exception:  # bare, with a column of this JSON
        raise ValueError("its post_processor is none of the tokenizers library") from None


def _split_names(names: Iterable[str], *, after: Any) -> Any:
    """Return a pre-tokenizer that splits the names of special tokens after their first character, so that a model with
    `</s>` as a piece does not find it in text."""
    from tokenizers import Regex, pre_tokenizers

    pattern = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if len(name) > 1)
    cut = [pre_tokenizers.Split(Regex(pattern), "merged_with_previous")] if pattern else []
    return pre_tokenizers.Sequence([*([after] if after is not None else []), *cut])


def _contains_type(part: Any, kind: str) -> bool:
    """Whether a part of tokenizer.json is a component of this type, or a sequence that contains one."""
    if not isinstance(part, dict):
        return False
    return part.get("type") == kind or any(_contains_type(inner, kind) for inner in part.get("pretokenizers", ()))
