"""SentencePiece models in Hugging Face folders without a tokenizer.json, and their ids in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.normalization import collapse_precompiled, flatten_normalizer, make_precompiled
from megaptm.tokenizers.probe import ODD

SPACES = (" a", "  a  b ", " ", "a b")
SPACED_TEXTS = (*SPACES, "a\nb\t c", "x y\u3000z\u00a0w ", "12345 678", "e\u0301 \ufb01 \u2460 \u00bd")
MAX_PIECES = 2000
"""Maximum number of pieces that are encoded to compare a BPE model with its conversion."""
COLLAPSED_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def as_sentencepiece(tokenizer: Tokenizer, file: Path) -> Tokenizer:
    """Return the tokenizer that `transformers` made of a SentencePiece model, with the ids of SentencePiece.

    Raises `UserError` for a model that is converted to other ids.
    """
    if tokenizer.kind not in ("unigram", "bpe"):
        return tokenizer
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]  # generated
        file.read_bytes()
    )
    complete = _complete_bpe if tokenizer.kind == "bpe" else _complete_unigram
    return complete(tokenizer, model, SentencePieceProcessor(model_file=str(file)), file)


def _complete_bpe(tokenizer: Tokenizer, model: Any, reference: Any, file: Path) -> Tokenizer:
    """Return a BPE tokenizer with the normalization and the unknown token of the model, which the classes of
    `transformers` do not read (they have those of Llama), if it is not that of `transformers`."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    _reject_options(
        file,
        {
            f"model_type is {trainer.ModelType.Name(trainer.model_type)}": trainer.model_type != trainer.BPE,
            "treat_whitespace_as_suffix is true": trainer.treat_whitespace_as_suffix,
            "escape_whitespaces is false": not normalizer.escape_whitespaces,
        },
    )
    texts = _comparison_texts(model)
    if _find_difference(tokenizer, reference, texts) is None:
        return tokenizer
    completed = Tokenizer(_bpe_content(tokenizer.content, model), tokenizer.config)
    if (difference := _find_difference(completed, reference, texts)) is None:
        return completed
    symbols = [piece.piece for piece in model.pieces if piece.type == piece.USER_DEFINED]
    raise _difference_error(file, f"user-defined symbols such as {symbols[0]!r}" if symbols else repr(difference[:40]))


def _bpe_content(content: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return the tokenizer.json of a SentencePiece BPE model; vocabulary and merges are those of `content`."""
    spec, byte_fallback = model.normalizer_spec, model.trainer_spec.byte_fallback
    parts = [make_precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        parts += [COLLAPSED_SPACES, {"type": "Replace", "pattern": {"Regex": r"\A | \z"}, "content": ""}]
    parts += [{"type": "Prepend", "prepend": "\u2581"}] * spec.add_dummy_prefix
    parts.append({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        *[{"type": "ByteFallback"}] * byte_fallback,
        {"type": "Fuse"},
        *[{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * spec.add_dummy_prefix,
    ]
    unknown = next(piece.piece for piece in model.pieces if piece.type == piece.UNKNOWN)
    options = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": byte_fallback, "ignore_merges": False}
    return {
        **content,
        "added_tokens": [token for token in content["added_tokens"] if token["special"]],
        "normalizer": {"type": "Sequence", "normalizers": parts},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {**content["model"], **options},
    }


def _comparison_texts(model: Any) -> list[str]:
    """Return texts of a SentencePiece model's own pieces, and others, on which its conversion is compared with it."""
    kinds = (model.SentencePiece.NORMAL, model.SentencePiece.USER_DEFINED)
    pieces = [piece.piece.replace("\u2581", " ") for piece in model.pieces if piece.type in kinds]
    pieces = pieces[:: max(1, len(pieces) // MAX_PIECES)]
    symbols = [piece.piece for piece in model.pieces if piece.type == piece.USER_DEFINED][:MAX_PIECES]
    in_context = [f"x{symbol}y {symbol} z" for symbol in symbols]
    return [*ODD, *SPACED_TEXTS, *pieces, "".join(pieces), " ".join(pieces), *in_context]


def _find_difference(tokenizer: Tokenizer, reference: Any, texts: Iterable[str]) -> str | None:
    """Return a text that a tokenizer encodes otherwise than SentencePiece, or None. Pieces are compared by name,
    because some families number them otherwise."""
    unknown = "" if tokenizer.unknown is None else tokenizer.name(tokenizer.unknown)
    for text in texts:
        expected = [
            unknown if reference.is_unknown(id_) else reference.id_to_piece(id_) for id_ in reference.encode(text)
        ]
        if [tokenizer.name(id_) for id_ in tokenizer.encode(text).tolist()] != expected:
            return text
    return None


def _complete_unigram(tokenizer: Tokenizer, model: Any, reference: Any, file: Path) -> Tokenizer:
    """Return a Unigram tokenizer with the parts of the model that `transformers` does not convert.

    - The normalization table (DeBERTa v2 and v3, BigBird).
    - Bytes for rare characters (mT5).
    - User-defined symbols (ALBERT, XLNet), which transformers turns into tokens that end a word.
    """
    parts = flatten_normalizer(collapse_precompiled(tokenizer.content.get("normalizer")))
    table = model.normalizer_spec.precompiled_charsmap
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    _reject_options(
        file,
        {
            f"model_type is {trainer.ModelType.Name(trainer.model_type)}": trainer.model_type
            not in (trainer.UNIGRAM, trainer.CHAR),
            "treat_whitespace_as_suffix is true": trainer.treat_whitespace_as_suffix,
            "add_dummy_prefix is false": not normalizer.add_dummy_prefix,
            "remove_extra_whitespaces is false": not normalizer.remove_extra_whitespaces,
            "escape_whitespaces is false": not normalizer.escape_whitespaces,
            "normalization_rule_name is identity": not table and any(part["type"] == "NFKD" for part in parts),
        },
    )
    content = dict(tokenizer.content)
    if not any(part["type"] == "Precompiled" for part in parts):
        folds = [part for part in parts if part["type"] == "Lowercase"]
        spaces = [COLLAPSED_SPACES, {"type": "Strip", "strip_left": True, "strip_right": True}]
        # A model trained with the rule `identity` has no table.
        tables = [make_precompiled(table)] if table else []
        content["normalizer"] = {"type": "Sequence", "normalizers": [*folds, *tables, *spaces]}
    if trainer.byte_fallback:
        content["model"] = {**content["model"], "byte_fallback": True}
        decoders = [{"type": "ByteFallback"}, content["decoder"]]
        content["decoder"] = {"type": "Sequence", "decoders": decoders}
    symbols = {piece.piece for piece in model.pieces if piece.type == piece.USER_DEFINED}
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["special"] or token["content"] not in symbols
    ]
    completed = Tokenizer(content, tokenizer.config)
    # Classes without a conversion of their own do not add the space before a text.
    if (difference := _find_difference(completed, reference, SPACES)) is not None:
        raise _difference_error(file, repr(difference))
    return completed


def _difference_error(file: Path, text: str) -> UserError:
    return UserError(f"{file}: {text} would be converted to other ids: add its tokenizer.json.")


def _reject_options(file: Path, unsupported: dict[str, bool]) -> None:
    """Raise `UserError` for options of a SentencePiece model that tokenizer.json cannot have here: option -> whether
    the model has it."""
    if reasons := [reason for reason, applies in unsupported.items() if applies]:
        raise UserError(
            f"{file}: {', '.join(reasons)}; such a tokenizer would be converted to other ids: add its tokenizer.json."
        )
