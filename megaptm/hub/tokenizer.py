"""A tokenizer from a folder of Hugging Face's format, and into one: there it treats texts as training did."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from megaptm.credentials import in_brief
from megaptm.errors import UserError
from megaptm.hub.library import quiet, transformers
from megaptm.objectives import BaseObjective, SpecialTokens
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer
from megaptm.tokenizers.normalization import flat, plain, precompiled
from megaptm.tokenizers.special import CONFIG_KEYS, role_names
from megaptm.tokenizers.tokenizer import GENERAL_CLASS, TRAINED_LAYOUT

SLOW_FILES = ("vocab.json", "vocab.txt", "spiece.model", "spm.model", "tokenizer.model")
OWN_LENGTH = "model_max_length"
FAMILY_OPTIONS = ("do_lower_case", "keep_accents", "extra_ids")
"""What the class of a family asks of a tokenizer's config, to rebuild what tokenizer.json has."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has files of a tokenizer."""
    return any((folder / name).is_file() for name in ("tokenizer.json", *SLOW_FILES))


def read_tokenizer(folder: Path) -> Tokenizer:
    """As it lies in a folder, so that corpora built with it still fit; else as `transformers` converts it."""
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    if not has_tokenizer(folder):
        raise UserError(f"{folder} has no tokenizer.json: put the model's tokenizer beside it.")
    library = transformers()
    with tempfile.TemporaryDirectory() as converted:
        try:
            with quiet():
                library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False).save_pretrained(converted)
        # Every family's class raises kinds of its own.
        except Exception as error:
            why = in_brief(error)
            raise UserError(f"{folder} has a tokenizer that cannot be read ({why}): add its tokenizer.json.") from None
        return _with_table(load_tokenizer(converted), folder)


def _with_table(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer with the normalization table of the folder's SentencePiece model, which transformers does not
    convert for DeBERTa v2 and v3, nor for BigBird."""
    file = next((folder / name for name in SLOW_FILES if name.endswith(".model") and (folder / name).is_file()), None)
    parts = flat(plain(tokenizer.content.get("normalizer")))
    if tokenizer.kind != "unigram" or file is None or any(part["type"] == "Precompiled" for part in parts):
        return tokenizer
    from sentencepiece import sentencepiece_model_pb2

    spec = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]  # generated
        file.read_bytes()
    ).normalizer_spec
    if not spec.precompiled_charsmap:
        return tokenizer
    folds = [part for part in parts if part["type"] == "Lowercase"]
    spaces = [
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ]
    normalizer = {"type": "Sequence", "normalizers": [*folds, precompiled(spec.precompiled_charsmap), *spaces]}
    return Tokenizer({**tokenizer.content, "normalizer": normalizer}, tokenizer.config)


def exported_tokenizer(tokenizer: Tokenizer, spec: ModelSpec, *, objective: BaseObjective, sequence: int) -> Tokenizer:
    """The same ids, with all that `AutoTokenizer` must know to give a model what it was trained on.

    Special tokens stand where the objective puts them. Texts are cut at `sequence`, the longest row of the training, or
    where the tokenizer came with a length of its own, there. A batch is filled with the end of text where there is no
    token for that: the attention mask hides it.
    """
    names = role_names(tokenizer.config, tokenizer.library.get_vocab(with_added_tokens=True))
    if "pad" not in names and "end" in names:
        names["pad"] = names["end"]
    inputs = ["input_ids", "attention_mask"]
    if spec.family.segments > 1:
        inputs.insert(1, "token_type_ids")
    config = {
        "tokenizer_class": GENERAL_CLASS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": inputs,
        OWN_LENGTH: _longest(tokenizer, spec, sequence),
        # Filled behind, since places count from the first token; `pipeline` turns it round where a model writes on.
        "padding_side": "right",
        "truncation_side": "right",
        **{key: tokenizer.config[key] for key in FAMILY_OPTIONS if key in tokenizer.config},
        **{CONFIG_KEYS[role]: name for role, name in names.items()},
    }
    content = _laid_out(tokenizer, objective, segments="token_type_ids" in inputs)
    if content is not tokenizer.content:
        config[TRAINED_LAYOUT] = tokenizer.config.get(TRAINED_LAYOUT, tokenizer.content.get("post_processor"))
    return Tokenizer(content, config)


def _longest(tokenizer: Tokenizer, spec: ModelSpec, sequence: int) -> int:
    own = tokenizer.config.get(OWN_LENGTH)
    # transformers writes 1e30 where nobody said how long.
    longest = max(own, sequence) if type(own) is int and own < 1 << 24 else sequence
    return longest if spec.longest is None else min(longest, spec.longest)


def _laid_out(tokenizer: Tokenizer, objective: BaseObjective, *, segments: bool) -> dict[str, Any]:
    """tokenizer.json with the objective's special tokens around a text, and two; as it is where it has them.

    Two texts are the tokenizer's to lay out (RoBERTa's: two `</s>` between them) where training never showed two, and
    no segment that it never showed could tell them apart.
    """
    content = tokenizer.content
    wanted = {**content, "post_processor": _template(objective, tokenizer.special, tokenizer.library)}
    shown = 2 if segments or objective.segments > 1 else 1
    return content if _samples(content, segments)[:shown] == _samples(wanted, segments)[:shown] else wanted


def _samples(content: dict[str, Any], segments: bool) -> list[tuple[list[int], list[int]]]:
    """Ids of a text, and of two, with their segments where the model has such."""
    from tokenizers import Tokenizer as Library

    library = Library.from_str(json.dumps(content))
    return [
        (encoded.ids, encoded.type_ids if segments else [])
        for encoded in (library.encode("a b"), library.encode("a b", "c"))
    ]


def _template(objective: BaseObjective, special: SpecialTokens, library: Any) -> dict[str, Any]:
    """`TemplateProcessing` of the tokenizers library, as its JSON is."""
    ids: dict[str, int] = {}

    def pieces(words: str) -> list[dict[str, Any]]:
        laid = []
        for word in words.split():
            name, _, segment = word.partition(":")
            if name in ("A", "B"):
                laid.append({"Sequence": {"id": name, "type_id": int(segment or 0)}})
                continue
            if (id_ := getattr(special, name)) is None:
                raise UserError(
                    f"the tokenizer has no {name} token, which {objective.name} puts around a text: export with the "
                    "one that the model was trained with."
                )
            token = library.id_to_token(id_)
            ids[token] = id_
            laid.append({"SpecialToken": {"id": token, "type_id": int(segment or 0)}})
        return laid

    single, pair = (pieces(words) for words in objective.template)
    tokens = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in ids.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}
