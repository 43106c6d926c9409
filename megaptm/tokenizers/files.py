"""Read and validate tokenizer.json and tokenizer_config.json, which are untrusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from megaptm.errors import UserError
from megaptm.storage import Record, read_json_object, validate
from megaptm.tokenizers.special import CONFIG_KEYS

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
REMEDY = "restore it or train a new tokenizer"
MAX_IDS = 1 << 24
"""Exclusive upper bound of token ids; published tokenizers have a million. The bound limits tables indexed by id."""

Id = Annotated[int, Field(ge=0, lt=MAX_IDS)]


class AddedToken(Record):
    """Entry of `added_tokens` in tokenizer.json."""

    id: Id
    content: Annotated[str, Field(min_length=1)]
    special: bool = False


class TokenizerModel(Record):
    """Fields of the model in tokenizer.json that megaptm reads itself."""

    type: str
    vocab: dict[str, Id] | Annotated[list[Any], Field(max_length=MAX_IDS)]


class TokenizerJson(Record):
    """Fields of tokenizer.json that megaptm reads itself."""

    model: TokenizerModel
    added_tokens: list[AddedToken] = Field(default_factory=list)
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class TokenWithOptions(Record):
    """Token with options in tokenizer_config.json, as transformers writes it."""

    content: str


def read_tokenizer_files(path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return the path of a tokenizer.json (bare or in a folder), its content, and that of the tokenizer_config.json
    beside it."""
    path = Path(path)
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"{file} does not exist: give a folder with a {TOKENIZER_FILE} (Hugging Face's format) or train one."
        )
    content = read_json_object(file, remedy=REMEDY)
    if "model" not in content:
        raise UserError(
            f"{file} has no key `model`, so it is not a Hugging Face tokenizer: give a folder with a {TOKENIZER_FILE}."
        )
    content = _add_model_type(content)
    validate(TokenizerJson, content, file, remedy=REMEDY)
    config_file = file.with_name(CONFIG_FILE)
    config = read_json_object(config_file, remedy=REMEDY) if config_file.is_file() else {}
    names = {key: config[key] for key in CONFIG_KEYS.values() if key in config}
    validate(dict[str, str | TokenWithOptions | None], names, config_file, remedy=REMEDY)
    return file, content, config


def _add_model_type(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer.json with the type of its model, which the first releases of the library did not
    write (for example GPT-2's)."""
    model = content["model"]
    if not isinstance(model, dict) or "type" in model:
        return content
    if isinstance(model.get("vocab"), list):
        kind = "Unigram"
    elif "merges" in model:
        kind = "BPE"
    else:
        kind = "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"
    return {**content, "model": {"type": kind, **model}}
