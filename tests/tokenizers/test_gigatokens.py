"""A tokenizer that a user brings, with any rule or option: the ids of Hugging Face, fast or not."""

import json

import pytest

from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.probe import probe_texts

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern: str, **options) -> dict:
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **options}
    return {"type": "Sequence", "pretokenizers": [rule, letters]}


def added(content: str, **options) -> list[dict]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": 600, "content": content, **plain, **options}]


PREFIX = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
NFC = {"normalizer": {"type": "NFC"}}
LOWER = {"normalizer": {"type": "Lowercase"}}
FAST = {
    "GPT-2": {},
    "GPT-2 with a space before": {"pre_tokenizer": PREFIX},
    "GPT-4, Llama 3": {"pre_tokenizer": split(GPT4)},
    "Qwen": {"pre_tokenizer": split(QWEN), **NFC},
    "lower case": LOWER,
    "replaced quotes": {"normalizer": {"type": "Replace", "pattern": {"String": "''"}, "content": '"'}},
    "a token for two spaces": {"added_tokens": added("  ")},
    "a token that takes the space before it": {"added_tokens": added("return", lstrip=True)},
}
SLOW = {
    "two digits": {"pre_tokenizer": split(GPT4.replace("{1,3}", "{1,2}"))},
    "vowels": {"pre_tokenizer": split("[aeiou]+|[^aeiou]")},
    "split twice": {"pre_tokenizer": split(GPT4, use_regex=True)},
    "split with a space before": {"pre_tokenizer": split(GPT4, add_prefix_space=True)},
    "not split": {"pre_tokenizer": {**PREFIX, "use_regex": False}},
    "a token sought in lower case": {"added_tokens": added("self", normalized=True), **LOWER},
    "a token sought in normal form": {"added_tokens": added("caf\u00e9", normalized=True), **NFC},
}


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_ids_are_those_of_hugging_face_whatever_the_options(name, trained, texts):
    content = {**trained["byte-bpe"].content, **(FAST | SLOW)[name]}
    tokenizer = Tokenizer(json.loads(json.dumps(content)), {})
    assert (tokenizer._gigatoken is not None) == (name in FAST)
    tried = [*probe_texts(), *texts, "the cafe\u0301 of SELF", "a  b", "''x''"]
    expected = tokenizer.library.encode_batch_fast(tried, add_special_tokens=False)
    for text, ids, encoding in zip(tried, tokenizer.encode_batch(tried), expected, strict=True):
        assert ids.tolist() == encoding.ids, text[:80]


def test_words_left_out_at_random_are_not_for_the_fast_library(trained):
    content = trained["byte-bpe"].content
    assert Tokenizer({**content, "model": {**content["model"], "dropout": 0.1}}, {})._gigatoken is None


def test_where_tokens_do_not_spell_the_text_the_library_says_where_they_end(trained):
    """A vocabulary with two names for one id: which of them the library tells is chance."""
    tokenizer = Tokenizer(trained["byte-bpe"].content, {})
    text = "the \u6f22\u5b57 \xe9"
    ((ids, ends),) = tokenizer.encode_batch_with_ends([text])
    assert ends[-1] == len(text)
    tokenizer._gigatoken._lengths[ids[-1]] += 2
    assert tokenizer._gigatoken.encode_batch_with_ends([text, "the"])[0] is None
    assert tokenizer.encode_batch_with_ends([text])[0][1].tolist() == ends.tolist()
