"""One tokenizer, whatever its kind: Hugging Face's files and ids, the fastest library that gives exactly those ids."""

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
from megaptm.storage import write_whole
from megaptm.tokenizers.files import CONFIG_FILE, REMEDY, TOKENIZER_FILE, read_tokenizer_files
from megaptm.tokenizers.gigatokens import Gigatoken, find_gigatoken
from megaptm.tokenizers.normalization import exact, plain
from megaptm.tokenizers.special import role_names, special_tokens
from megaptm.tokenizers.word_cache import MARK, WordCache, ids_and_ends, library_errors_as_user_errors, splits_at_spaces

if TYPE_CHECKING:
    import tokenizers

GENERAL_CLASS = "PreTrainedTokenizerFast"
"""transformers' class that reads tokenizer.json as it stands; the classes of one family rebuild parts of it."""
TRAINED_LAYOUT = "trained_post_processor"
"""Key of tokenizer_config.json with how corpora's tokenizer wraps texts, where tokenizer.json has it otherwise."""


class Tokenizer:
    """Ids of text and text of ids.

    Text is only ever text: `<|endoftext|>` written inside a document becomes the ids of its characters, never the id
    that ends a document (transformers calls this `split_special_tokens=True`).
    """

    def __init__(self, content: Mapping[str, Any], config: Mapping[str, Any]):
        """`content` is the parsed tokenizer.json, `config` the parsed tokenizer_config.json (may be empty)."""
        # A cut or a filling to length that someone once saved with the tokenizer is not part of the vocabulary.
        self.content = {**content, "truncation": None, "padding": None}
        if content.get("normalizer"):
            # What an earlier version of megaptm trained was folded by the library's own parts.
            published = config.get("tokenizer_class") != GENERAL_CLASS
            self.content["normalizer"] = exact(content["normalizer"], folds=published)
        self.config = dict(config)

    @cached_property
    def kind(self) -> str:
        """One of `KINDS`."""
        model = self.content["model"]
        if model["type"] != "BPE":
            return {"WordLevel": "words"}.get(model["type"], model["type"].lower())
        if _mentions(self.content.get("pre_tokenizer"), "ByteLevel"):
            return "byte-bpe"
        return "char-bpe" if model.get("end_of_word_suffix") else "bpe"

    @cached_property
    def special(self) -> SpecialTokens:
        return special_tokens(self.content, self.config, self.library.get_vocab(with_added_tokens=True))

    @cached_property
    def unknown(self) -> int | None:
        """The id of all words that have none; None where there is no such word."""
        ids: dict[str, int] = self.library.get_vocab(with_added_tokens=True)
        name = role_names(self.config, ids).get("unknown")
        return None if name is None else ids[name]

    @property
    def vocabulary(self) -> int:
        """Number of ids: one more than the largest."""
        return self.special.size

    def for_manifest(self) -> dict[str, str | int]:
        """What the manifest of a corpus says of its tokenizer."""
        return {"kind": self.kind, "vocabulary": self.vocabulary, "fingerprint": self.fingerprint}

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of tokenizer.json, however its file is spaced and ordered.

        Where an export put other special tokens around texts, it is still that of the tokenizer that corpora name. So
        it is where `Precompiled` has become the parts that give SentencePiece's result.
        """
        content = {**self.content, "normalizer": plain(self.content.get("normalizer"))}
        if TRAINED_LAYOUT in self.config:
            content = {**content, "post_processor": self.config[TRAINED_LAYOUT]}
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The Hugging Face tokenizer: defines the ids, decodes, and encodes what has no faster exact library."""
        import tokenizers

        # What wraps a text in special tokens has no part in this, but would move the places of tokens.
        library = tokenizers.Tokenizer.from_str(json.dumps({**self.content, "post_processor": None}))
        library.encode_special_tokens = True
        if self.kind == "unigram":
            library.pre_tokenizer = _cut_in_two(self._special_names, after=library.pre_tokenizer)
        return library

    @property
    def _special_names(self) -> list[str]:
        return [token["content"] for token in self.content.get("added_tokens", ()) if token.get("special")]

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
        """int32 [tokens]: the ids of one text, nothing added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 [tokens] for each text, nothing added; they may be views that cannot be written to."""
        faster = self._gigatoken or self._words
        with library_errors_as_user_errors(texts):
            encoded: list[Any] = faster.encode_batch(texts) if faster else [None] * len(texts)
            left = [number for number, ids in enumerate(encoded) if ids is None]
            encodings = self.library.encode_batch_fast([texts[number] for number in left], add_special_tokens=False)
        for number, encoding in zip(left, encodings, strict=True):
            encoded[number] = np.array(encoding.ids, dtype=np.int32)
        return encoded

    def encode_batch_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """int32 [tokens] twice for each text: ids, and the character of the text after each token's last.

        Ends never fall; tokens that share a character have the same.
        """
        faster = self._gigatoken if self._gigatoken and self._gigatoken.has_ends else self._words_with_ends
        with library_errors_as_user_errors(texts):
            encoded: list[Any] = faster.encode_batch_with_ends(texts) if faster else [None] * len(texts)
            left = [number for number, ids in enumerate(encoded) if ids is None]
            encodings = self.library.encode_batch([texts[number] for number in left], add_special_tokens=False)
        for number, encoding in zip(left, encodings, strict=True):
            encoded[number] = ids_and_ends([encoding], self.library.token_to_id(MARK))[:2]
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; special tokens show as their names."""
        return self.library.decode([int(id_) for id_ in ids], skip_special_tokens=False)

    def name(self, id_: int) -> str:
        """What a token is called; of a gap in the numbering, the number."""
        name: str | None = self.library.id_to_token(id_)
        return f"({id_})" if name is None else name

    def shown(self, id_: int) -> str:
        """A token for people: by its name, but where names are bytes in an alphabet of their own, text in quotes."""
        return repr(self.decode([id_])) if self.kind == "byte-bpe" else self.name(id_)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder that `load` and `transformers.AutoTokenizer.from_pretrained` read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in ((TOKENIZER_FILE, self.content), (CONFIG_FILE, self.config)):
            write_whole(folder / name, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def starts_of(ends: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """int32 [parts or fewer]: the first token that reaches into each part of a text; `begins` are their rising places.

    A part without a token of its own (white space, for WordPiece) is one with the part before it.
    """
    starts = np.searchsorted(ends, begins, side="right").astype(np.int32)
    starts = starts[starts < len(ends)]
    return starts[np.diff(starts, prepend=-1) > 0]


def load(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer in a folder, or in a bare tokenizer.json; a `UserError` where there is none, or none that can be
    read."""
    file, content, config = read_tokenizer_files(path)
    try:
        tokenizer = Tokenizer(content, config)
        _ = tokenizer.kind, tokenizer.special  # parsed here, so that a bad file is named here
    except UserError:
        raise
    except BaseException as error:  # the library raises bare Exception, and its panics are none
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise UserError(f"{file} is not a tokenizer that can be read ({error}): {REMEDY}.") from None
    return tokenizer


def _cut_in_two(names: Iterable[str], *, after: Any) -> Any:
    """A pre-tokenizer that cuts these names after their first character.

    A Unigram model lists `</s>` among its pieces, so it would find it in text as it finds any other piece.
    """
    from tokenizers import Regex, pre_tokenizers

    pattern = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if len(name) > 1)
    cut = [pre_tokenizers.Split(Regex(pattern), "merged_with_previous")] if pattern else []
    return pre_tokenizers.Sequence([*([after] if after is not None else []), *cut])


def _mentions(part: Any, kind: str) -> bool:
    """Whether a tokenizer.json part is, or is a sequence with, a component of this type."""
    if not isinstance(part, dict):
        return False
    return part.get("type") == kind or any(_mentions(inner, kind) for inner in part.get("pretokenizers", ()))
