"""Word cache: the tokenizers that support it, and equality of its ids with those of complete texts."""

import json

import pytest

from megaptm.tokenizers import Tokenizer, word_cache
from megaptm.tokenizers.probe import probe_texts


def bert(**options) -> dict:
    defaults = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    return {"normalizer": {"type": "BertNormalizer", **defaults, **options}}


def metaspace(**options) -> dict:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True, **options}


CACHED = {
    "BERT": ("wordpiece", {}),
    "BERT cased": ("wordpiece", bert(lowercase=False)),
    "BERT with accents and control characters": ("wordpiece", bert(clean_text=False, strip_accents=False)),
    "words and punctuation": ("wordpiece", {"normalizer": {"type": "NFKD"}, "pre_tokenizer": {"type": "Whitespace"}}),
    "GPT": ("char-bpe", {}),
    "words": ("words", {}),
    "T5": ("unigram", {}),
    "ALBERT": ("ALBERT", {}),
    "repeated spaces collapsed": (
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
NOT_CACHED = {
    "lines preserved": ("unigram", {"normalizer": {"type": "NFKC"}, "pre_tokenizer": metaspace()}),
    "not split": ("unigram", {"pre_tokenizer": metaspace(split=False)}),
    "no prefix space": ("unigram", {"pre_tokenizer": metaspace(prepend_scheme="never")}),
    "own split pattern": (
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
    "replacement across spaces": (
        "wordpiece",
        {"normalizer": {"type": "Replace", "pattern": {"String": "New York"}, "content": "NY"}},
    ),
}


@pytest.mark.parametrize("name", [*CACHED, *NOT_CACHED])
def test_ids_equal_hugging_face(name, trained, texts):
    """Words are cached exactly for the tokenizers in CACHED."""
    kind, change = (CACHED | NOT_CACHED)[name]
    tokenizer = Tokenizer(json.loads(json.dumps({**trained[kind].content, **change})), {})
    assert (tokenizer._words is not None) == (name in CACHED)
    all_texts = [*probe_texts(), *texts, "in New York", "New\u3000 York"]
    expected = tokenizer.library.encode_batch_fast(all_texts, add_special_tokens=False)
    for text, ids, encoding in zip(all_texts, tokenizer.encode_batch(all_texts), expected, strict=True):
        assert ids.tolist() == encoding.ids, text[:80]


def test_cache_is_cleared_at_its_maximum(trained, texts, monkeypatch):
    monkeypatch.setattr(word_cache, "MAX_WORDS", 500)
    tokenizer = Tokenizer(trained["wordpiece"].content, {})
    expected = [trained["wordpiece"].encode(text).tolist() for text in texts]
    for _ in range(2):
        for text, ids in zip(texts, expected, strict=True):
            assert tokenizer.encode(text).tolist() == ids
            assert len(tokenizer._words._encoded) <= 500


def test_long_words_are_not_cached(trained):
    tokenizer = Tokenizer(trained["wordpiece"].content, {})
    tokenizer.encode("short " + "long" * 30)
    assert list(tokenizer._words._encoded) == [b"short"]
