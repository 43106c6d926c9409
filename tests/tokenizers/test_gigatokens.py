"""Tokenizers with any splitting rule or option: the ids equal Hugging Face's, with or without gigatoken."""

import json

import pytest

from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.probe import probe_texts

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")


def split_by(pattern: str, **options) -> dict:
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **options}
    return {"type": "Sequence", "pretokenizers": [rule, letters]}


def added_token(content: str, **options) -> list[dict]:
    defaults = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": 600, "content": content, **defaults, **options}]


PREFIX = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
NFC = {"normalizer": {"type": "NFC"}}
LOWER = {"normalizer": {"type": "Lowercase"}}
FAST = {
    "GPT-2": {},
    "GPT-2 with added prefix space": {"pre_tokenizer": PREFIX},
    "GPT-4, Llama 3": {"pre_tokenizer": split_by(GPT4)},
    "Qwen": {"pre_tokenizer": split_by(QWEN), **NFC},
    "lowercase": LOWER,
    "replaced quotes": {"normalizer": {"type": "Replace", "pattern": {"String": "''"}, "content": '"'}},
    "added token of two spaces": {"added_tokens": added_token("  ")},
    "added token with lstrip": {"added_tokens": added_token("return", lstrip=True)},
}
SLOW = {
    "two digits per token": {"pre_tokenizer": split_by(GPT4.replace("{1,3}", "{1,2}"))},
    "split at vowels": {"pre_tokenizer": split_by("[aeiou]+|[^aeiou]")},
    "split twice": {"pre_tokenizer": split_by(GPT4, use_regex=True)},
    "split with added prefix space": {"pre_tokenizer": split_by(GPT4, add_prefix_space=True)},
    "not split": {"pre_tokenizer": {**PREFIX, "use_regex": False}},
    "added token matched in lowercase text": {"added_tokens": added_token("self", normalized=True), **LOWER},
    "added token matched in NFC text": {"added_tokens": added_token("caf\u00e9", normalized=True), **NFC},
}


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_ids_equal_hugging_face(name, trained, texts):
    """gigatoken is used exactly for the options in FAST."""
    content = {**trained["byte-bpe"].content, **(FAST | SLOW)[name]}
    tokenizer = Tokenizer(json.loads(json.dumps(content)), {})
    assert (tokenizer._gigatoken is not None) == (name in FAST)
    all_texts = [*probe_texts(), *texts, "the cafe\u0301 of SELF", "a  b", "''x''"]
    expected = tokenizer.library.encode_batch_fast(all_texts, add_special_tokens=False)
    for text, ids, encoding in zip(all_texts, tokenizer.encode_batch(all_texts), expected, strict=True):
        assert ids.tolist() == encoding.ids, text[:80]


def test_gigatoken_is_not_used_with_dropout(trained):
    content = trained["byte-bpe"].content
    assert Tokenizer({**content, "model": {**content["model"], "dropout": 0.1}}, {})._gigatoken is None


def test_ends_fall_back_to_library_if_token_bytes_differ_from_text(trained):
    """A vocabulary may have two names for one id, of which the library reports either."""
    tokenizer = Tokenizer(trained["byte-bpe"].content, {})
    text = "the \u6f22\u5b57 \xe9"
    ((ids, ends),) = tokenizer.encode_batch_with_ends([text])
    assert ends[-1] == len(text)
    tokenizer._gigatoken._lengths[ids[-1]] += 2
    assert tokenizer._gigatoken.encode_batch_with_ends([text, "the"])[0] is None
    assert tokenizer.encode_batch_with_ends([text])[0][1].tolist() == ends.tolist()
