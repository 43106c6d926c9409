"""Import and export of tokenizers in Hugging Face's format. Exported ones treat text as training did."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from megaptm.credentials import brief_message
from megaptm.errors import UserError
from megaptm.hub.library import import_transformers, suppress_library_messages
from megaptm.hub.sentencepiece_model import as_sentencepiece
from megaptm.objectives import BaseObjective, SpecialTokens
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer, load_tokenizer
from megaptm.tokenizers.files import CHAT_TEMPLATE, TOKENIZER_FILE
from megaptm.tokenizers.special import CONFIG_KEYS, find_role_names
from megaptm.tokenizers.tokenizer import GENERAL_CLASS, TRAINED_LAYOUT

SLOW_FILES = (
    *("vocab.json", "vocab.txt"),
    *("spiece.model", "spm.model", "tokenizer.model", "sentencepiece.bpe.model"),
)
"""Files from which `transformers` makes a tokenizer.json."""
COMPARED_TEXTS = ("Caf\u00e9 The", "\u4e2d\u56fd", "a b")
"""Texts that show whether a tokenizer folds case, removes accents, divides Chinese words and adds a space."""
MAX_LENGTH_KEY = "model_max_length"
FAMILY_OPTIONS = ("do_lower_case", "keep_accents", "extra_ids")
"""Options in a tokenizer's config from which a family's tokenizer class rebuilds parts of tokenizer.json."""
EXPORTED_OPTIONS = (*FAMILY_OPTIONS, CHAT_TEMPLATE)
"""Options of an imported tokenizer's config that an export has, too."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder of a Hugging Face model has tokenizer files."""
    return any((folder / name).is_file() for name in (TOKENIZER_FILE, *SLOW_FILES))


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face folder unchanged, so that corpora built with it still match; else as
    `transformers` converts it."""
    if (folder / TOKENIZER_FILE).is_file():
        return load_tokenizer(folder)
    if not has_tokenizer(folder):
        problem = (
            "does not exist" if not folder.exists() else "has no tokenizer.json" if folder.is_dir() else "is a file"
        )
        raise UserError(f"{folder} {problem}: give a folder with the model's tokenizer.json.")
    library = import_transformers()
    with tempfile.TemporaryDirectory() as converted:
        try:
            with suppress_library_messages():
                library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False).save_pretrained(converted)
        # Every family's class raises other types.
        except Exception as error:
            why = brief_message(error)
            raise UserError(f"{folder} has a tokenizer that cannot be read ({why}): add its tokenizer.json.") from None
        tokenizer = load_tokenizer(converted)
    model = next((folder / name for name in SLOW_FILES if name.endswith(".model") and (folder / name).is_file()), None)
    return tokenizer if model is None else as_sentencepiece(tokenizer, model)


def find_contradicted_text(folder: Path, tokenizer: Tokenizer) -> str | None:
    """Return a text that the class of `transformers` encodes otherwise than the tokenizer.json of a folder, because
    tokenizer_config.json contradicts it, for example by `do_lower_case`; None without such a text or file."""
    if not (folder / TOKENIZER_FILE).is_file():
        return None
    library = import_transformers()
    try:
        with suppress_library_messages():
            other = library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        for text in COMPARED_TEXTS:
            if other(text, add_special_tokens=False).input_ids != tokenizer.encode(text).tolist():
                return text
    except Exception:  # a class may need other files; megaptm reads only tokenizer.json
        return None
    return None


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
        **{key: tokenizer.config[key] for key in EXPORTED_OPTIONS if key in tokenizer.config},
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
