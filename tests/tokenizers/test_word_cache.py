"""Words looked up: which tokenizers allow it, and that their ids are those of whole texts."""

import json

import pytest

from megaptm.tokenizers import Tokenizer, word_cache
from megaptm.tokenizers.probe import probe_texts


def bert(**options) -> dict:
    plain = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    return {"normalizer": {"type": "BertNormalizer", **plain, **options}}


def metaspace(**options) -> dict:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True, **options}


BY_WORDS = {
    "BERT": ("wordpiece", {}),
    "BERT cased": ("wordpiece", bert(lowercase=False)),
    "BERT that keeps accents and controls": ("wordpiece", bert(clean_text=False, strip_accents=False)),
    "words and punctuation": ("wordpiece", {"normalizer": {"type": "NFKD"}, "pre_tokenizer": {"type": "Whitespace"}}),
    "GPT": ("char-bpe", {}),
    "whole words": ("words", {}),
    "T5": ("unigram", {}),
    "ALBERT": ("ALBERT", {}),
    "spaces made one first": (
        "unigram",
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Nmt"},
                    {"type": "NFKC"},
                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                    {"type": "Strip", "strip_left": True, "strip_right": True},
                ],
            },
            "pre_tokenizer": metaspace(),
        },
    ),
}
WHOLE = {
    "lines kept": ("unigram", {"normalizer": {"type": "NFKC"}, "pre_tokenizer": metaspace()}),
    "not split": ("unigram", {"pre_tokenizer": metaspace(split=False)}),
    "no space before": ("unigram", {"pre_tokenizer": metaspace(prepend_scheme="never")}),
    "a rule of its own": (
        "wordpiece",
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "[aeiou ]"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
    ),
    "replaced across spaces": (
        "wordpiece",
        {"normalizer": {"type": "Replace", "pattern": {"String": "New York"}, "content": "NY"}},
    ),
}


@pytest.mark.parametrize("name", [*BY_WORDS, *WHOLE])
def test_ids_are_those_of_hugging_face_whatever_the_parts(name, trained, texts):
    kind, change = (BY_WORDS | WHOLE)[name]
    tokenizer = Tokenizer(json.loads(json.dumps({**trained[kind].content, **change})), {})
    assert (tokenizer._words is not None) == (name in BY_WORDS)
    tried = [*probe_texts(), *texts, "in New York", "New\u3000 York"]
    expected = tokenizer.library.encode_batch_fast(tried, add_special_tokens=False)
    for text, ids, encoding in zip(tried, tokenizer.encode_batch(tried), expected, strict=True):
        assert ids.tolist() == encoding.ids, text[:80]


def test_what_is_remembered_stays_small(trained, texts, monkeypatch):
    monkeypatch.setattr(word_cache, "MOST", 500)
    tokenizer = Tokenizer(trained["wordpiece"].content, {})
    expected = [trained["wordpiece"].encode(text).tolist() for text in texts]
    for _ in range(2):
        for text, ids in zip(texts, expected, strict=True):
            assert tokenizer.encode(text).tolist() == ids
            assert len(tokenizer._words._known) <= 500


def test_long_words_are_not_remembered(trained):
    tokenizer = Tokenizer(trained["wordpiece"].content, {})
    tokenizer.encode("short " + "long" * 30)
    assert list(tokenizer._words._known) == [b"short"]
