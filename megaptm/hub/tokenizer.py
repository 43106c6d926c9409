"""Import and export of tokenizers in Hugging Face's format. Exported ones treat text as training did."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from megaptm.credentials import brief_message
from megaptm.errors import UserError
from megaptm.hub.library import import_transformers, suppress_messages
from megaptm.objectives import BaseObjective, SpecialTokens
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer
from megaptm.tokenizers.normalization import collapse_precompiled, flatten_normalizer, make_precompiled
from megaptm.tokenizers.special import CONFIG_KEYS, find_role_names
from megaptm.tokenizers.tokenizer import GENERAL_CLASS, TRAINED_LAYOUT

SLOW_FILES = ("vocab.json", "vocab.txt", "spiece.model", "spm.model", "tokenizer.model")
MAX_LENGTH_KEY = "model_max_length"
FAMILY_OPTIONS = ("do_lower_case", "keep_accents", "extra_ids")
"""Options in a tokenizer's config from which a family's tokenizer class rebuilds parts of tokenizer.json."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder of a Hugging Face model has tokenizer files."""
    return any((folder / name).is_file() for name in ("tokenizer.json", *SLOW_FILES))


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face folder unchanged, so that corpora built with it still match; else as
    `transformers` converts it."""
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    if not has_tokenizer(folder):
        problem = (
            "does not exist" if not folder.exists() else "has no tokenizer.json" if folder.is_dir() else "is a file"
        )
        raise UserError(f"{folder} {problem}: give a folder with the model's tokenizer.json.")
    library = import_transformers()
    with tempfile.TemporaryDirectory() as converted:
        try:
            with suppress_messages():
                library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False).save_pretrained(converted)
        # Every family's class raises other types.
        except Exception as error:
            why = brief_message(error)
            raise UserError(f"{folder} has a tokenizer that cannot be read ({why}): add its tokenizer.json.") from None
        return _as_sentencepiece(load_tokenizer(converted), folder)


def _as_sentencepiece(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """Return the tokenizer with the parts of the folder's SentencePiece model that transformers does not convert.

    - The normalization table (DeBERTa v2 and v3, BigBird).
    - Bytes for rare characters (mT5).
    - User-defined symbols (ALBERT, XLNet), which transformers turns into tokens that end a word.

    Raises `UserError` for a model that transformers converts to other ids.
    """
    file = next((folder / name for name in SLOW_FILES if name.endswith(".model") and (folder / name).is_file()), None)
    if tokenizer.kind != "unigram" or file is None:
        return tokenizer
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]  # generated
        file.read_bytes()
    )
    parts = flatten_normalizer(collapse_precompiled(tokenizer.content.get("normalizer")))
    table = model.normalizer_spec.precompiled_charsmap
    _reject_sentencepiece_options(model, file, has_folds=not table and any(part["type"] == "NFKD" for part in parts))
    content = dict(tokenizer.content)
    if not any(part["type"] == "Precompiled" for part in parts):
        folds = [part for part in parts if part["type"] == "Lowercase"]
        spaces = [
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            {"type": "Strip", "strip_left": True, "strip_right": True},
        ]
        # A model trained with the rule `identity` has no table.
        tables = [make_precompiled(table)] if table else []
        content["normalizer"] = {"type": "Sequence", "normalizers": [*folds, *tables, *spaces]}
    if model.trainer_spec.byte_fallback:
        content["model"] = {**content["model"], "byte_fallback": True}
        decoders = [{"type": "ByteFallback"}, content["decoder"]]
        content["decoder"] = {"type": "Sequence", "decoders": decoders}
    symbols = {piece.piece for piece in model.pieces if piece.type == piece.USER_DEFINED}
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["special"] or token["content"] not in symbols
    ]
    return Tokenizer(content, tokenizer.config)


def _reject_sentencepiece_options(model: Any, file: Path, *, has_folds: bool) -> None:
    """Raise `UserError` for options of a SentencePiece model that tokenizer.json cannot have here."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    unsupported = {
        f"model_type is {trainer.ModelType.Name(trainer.model_type)}": trainer.model_type
        not in (trainer.UNIGRAM, trainer.CHAR),
        "treat_whitespace_as_suffix is true": trainer.treat_whitespace_as_suffix,
        "add_dummy_prefix is false": not normalizer.add_dummy_prefix,
        "remove_extra_whitespaces is false": not normalizer.remove_extra_whitespaces,
        "escape_whitespaces is false": not normalizer.escape_whitespaces,
        "normalization_rule_name is identity": has_folds,
    }
    if reasons := [reason for reason, applies in unsupported.items() if applies]:
        raise UserError(
            f"{file}: {', '.join(reasons)}; such a tokenizer would be converted to other ids: add its tokenizer.json."
        )


def export_tokenizer(tokenizer: Tokenizer, spec: ModelSpec, *, objective: BaseObjective, sequence: int) -> Tokenizer:
    """Export a tokenizer: return one with the same ids, and the settings with which `AutoTokenizer` reproduces training
    inputs.

    Special tokens are placed as by the objective. Texts are truncated at `sequence`, the longest training sequence, or
    at the tokenizer's own maximum length if that is larger. Without a pad token the end token is used: the attention
    mask hides it.
    """
    names = find_role_names(tokenizer.config, tokenizer.library.get_vocab(with_added_tokens=True))
    if "pad" not in names and "end" in names:
        names["pad"] = names["end"]
    inputs = ["input_ids", "attention_mask"]
    if spec.family.segments > 1:
        inputs.insert(1, "token_type_ids")
    config = {
        "tokenizer_class": GENERAL_CLASS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": inputs,
        MAX_LENGTH_KEY: _max_length(tokenizer, spec, sequence),
        # Padding follows the text, since positions count from the first token; `pipeline` changes it for generation.
        "padding_side": "right",
        "truncation_side": "right",
        **{key: tokenizer.config[key] for key in FAMILY_OPTIONS if key in tokenizer.config},
        **{CONFIG_KEYS[role]: name for role, name in names.items()},
    }
    content = _with_template(tokenizer, objective, segments="token_type_ids" in inputs)
    if content is not tokenizer.content:
        config[TRAINED_LAYOUT] = tokenizer.config.get(TRAINED_LAYOUT, tokenizer.content.get("post_processor"))
    return Tokenizer(content, config)


def _max_length(tokenizer: Tokenizer, spec: ModelSpec, sequence: int) -> int:
    own = tokenizer.config.get(MAX_LENGTH_KEY)
    # transformers writes 1e30 if the length is not set.
    longest = max(own, sequence) if type(own) is int and own < 1 << 24 else sequence
    return longest if spec.max_text_length is None else min(longest, spec.max_text_length)


def _with_template(tokenizer: Tokenizer, objective: BaseObjective, *, segments: bool) -> dict[str, Any]:
    """Return tokenizer.json with the objective's special tokens around one and two texts, unchanged if it already has
    them.

    If training never had two texts and the model has no segments, the tokenizer's own template of pairs is retained
    (RoBERTa: two `</s>` between them).
    """
    content = tokenizer.content
    with_template = {**content, "post_processor": _template_json(objective, tokenizer.special, tokenizer.library)}
    num_compared = 2 if segments or objective.num_segments > 1 else 1
    current, trained = (_encode_samples(each, segments)[:num_compared] for each in (content, with_template))
    return content if current == trained else with_template


def _encode_samples(content: dict[str, Any], segments: bool) -> list[tuple[list[int], list[int]]]:
    """Return the ids of one text and of a pair as an exported tokenizer makes them, with their segments if the model
    has them."""
    from tokenizers import Tokenizer as Library

    library = Library.from_str(json.dumps(content))
    return [
        (encoded.ids, encoded.type_ids if segments else [])
        for encoded in (library.encode("a b"), library.encode("a b", "c"))
    ]


def _template_json(objective: BaseObjective, special: SpecialTokens, library: Any) -> dict[str, Any]:
    """Return the JSON of `TemplateProcessing` (tokenizers library) for an exported tokenizer."""
    ids: dict[str, int] = {}

    def parse(template: str) -> list[dict[str, Any]]:
        parts = []
        for word in template.split():
            name, _, segment = word.partition(":")
            if name in ("A", "B"):
                parts.append({"Sequence": {"id": name, "type_id": int(segment or 0)}})
                continue
            if (id_ := getattr(special, name)) is None:
                raise UserError(
                    f"the tokenizer has no {name} token, which {objective.name} adds to texts: export with the "
                    "tokenizer used in training."
                )
            token = library.id_to_token(id_)
            ids[token] = id_
            parts.append({"SpecialToken": {"id": token, "type_id": int(segment or 0)}})
        return parts

    single, pair = (parse(template) for template in objective.template)
    tokens = {token: {"id": token, "ids": [id_], "tokens": [token]} for token, id_ in ids.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}
