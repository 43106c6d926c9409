"""Special tokens and their roles, read from a tokenizer's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from megaptm.objectives.vocabulary import SpecialTokens

# Role -> key of tokenizer_config.json that names its token.
CONFIG_KEYS = {
    "pad": "pad_token",
    "end": "eos_token",
    "begin": "bos_token",
    "cls": "cls_token",
    "sep": "sep_token",
    "mask": "mask_token",
    "unknown": "unk_token",
}

# Names that are used if there are no roles, as in a bare tokenizer.json and the oldest published configs.
USUAL_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "end": ("<|endoftext|>", "</s>", "<|end_of_text|>"),
    "begin": ("<s>", "<|begin_of_text|>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
    "unknown": ("[UNK]", "<unk>"),
}

# Sentinels of T5, and of mT5, whose file has them as pieces that start a word.
SENTINELS = (re.compile(r"<extra_id_(\d+)>"), re.compile(r"▁<extra_id_(\d+)>"))


def read_special_tokens(content: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]) -> SpecialTokens:
    """Return the roles of special tokens that `config` (tokenizer_config.json) assigns to the tokens in `ids`;
    `content` is tokenizer.json."""
    roles = {role: ids[name] for role, name in find_role_names(config, ids).items()}
    numbered = (
        {int(match[1]): ids[name] for name in ids if (match := pattern.fullmatch(name))} for pattern in SENTINELS
    )
    sentinels = sorted(next((ids_ for ids_ in numbered if ids_), {}).items())
    marked_ids = {token["id"] for token in content.get("added_tokens", ()) if token.get("special")}
    size = max(ids.values(), default=-1) + 1
    by_id = {id_: name for name, id_ in ids.items()} if content.get("model", {}).get("type") == "WordLevel" else {}
    return SpecialTokens(
        size=size,
        words=tuple(by_id.get(id_, "") for id_ in range(size)) if by_id else (),
        sentinels=tuple(id_ for _, id_ in sentinels),
        specials=frozenset(marked_ids | set(roles.values()) | {id_ for _, id_ in sentinels}),
        **{role: id_ for role, id_ in roles.items() if role != "unknown"},
    )


def find_role_names(config: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, str]:
    """Return the special tokens that have an id: role -> token."""
    return {role: name for role, name in (_configured_roles(config) or _usual_roles(ids)).items() if name in ids}


def _configured_roles(config: Mapping[str, Any]) -> dict[str, str]:
    names = {role: config.get(key) for role, key in CONFIG_KEYS.items()}
    # transformers writes a token either as its text or as {"content": text, ...}.
    texts = {role: name.get("content") if isinstance(name, dict) else name for role, name in names.items()}
    return {role: text for role, text in texts.items() if text is not None}


def _usual_roles(ids: Mapping[str, int]) -> dict[str, str]:
    # RoBERTa and BART use begin and end tokens as cls and sep tokens.
    usual = USUAL_NAMES if "<mask>" not in ids else {**USUAL_NAMES, "cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>")}
    roles = {role: next((name for name in names if name in ids), None) for role, names in usual.items()}
    return {role: name for role, name in roles.items() if name is not None}
