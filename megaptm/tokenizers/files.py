"""Read and validate tokenizer.json and tokenizer_config.json, which are untrusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from megaptm.errors import UserError
from megaptm.storage import Record, read_json_object, read_text_file, refuse_large_file, validate
from megaptm.tokenizers.special import CONFIG_KEYS

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
CHAT_TEMPLATE = "chat_template"
"""Key of tokenizer_config.json with the template of conversations, which newer folders have in TEMPLATE_FILE."""
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
    if (template := file.with_name(TEMPLATE_FILE)).is_file():
        config[CHAT_TEMPLATE] = _read_template(template)
    names = {key: config[key] for key in CONFIG_KEYS.values() if key in config}
    validate(dict[str, str | TokenWithOptions | None], names, config_file, remedy=REMEDY)
    return file, content, config


def _read_template(file: Path) -> str:
    """Read the template of conversations beside a tokenizer.json, which an export has, too.

    A link is refused, since a received folder could name a private file of the user, except those of the hub's cache.
    """
    target = file.resolve()
    if file.is_symlink() and target.parent != (file.parent / "../../blobs").resolve():
        raise UserError(f"{file} is a link to {target}: replace it by a copy.")
    refuse_large_file(str(file), target.stat().st_size)
    return read_text_file(file, remedy=REMEDY)


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
