"""Training of tokenizers: published order of ids, reproducible results, and error messages."""

import os
import re
import subprocess
import sys

import pytest

from megaptm.commands import tokenizer as command
from megaptm.errors import UserError
from megaptm.tokenizers import KINDS, SPECIALS, train_tokenizer_on_texts

TRAIN_ALONE = """
import sys, argparse
from megaptm.tokenizers import KINDS, train_tokenizer_on_texts
texts = [open(argparse.__file__, encoding="utf-8").read(), "naïve 漢字 ünï — “quoted”"]
for kind in KINDS:
    print(train_tokenizer_on_texts(kind, texts, vocabulary=500).fingerprint)
"""


def test_training_is_reproducible_across_processes_and_threads():
    def fingerprints(threads: str) -> str:
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        run = [sys.executable, "-c", TRAIN_ALONE]
        return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout

    assert fingerprints("1") == fingerprints("2")


def test_bpe_has_ids_of_llama_and_byte_fallback(trained):
    special = trained["bpe"].special
    assert special.begin == 1
    assert special.end == 2
    assert special.specials == {0, 1, 2}
    assert trained["bpe"].encode("\n").tolist()[-1] == 3 + 0x0A
    assert trained["bpe"].encode("☃").tolist()[-3:] == [3 + byte for byte in "☃".encode()]
    text = "def f(x):\n    return x  # ☃ naïve 漢字\n"
    assert trained["bpe"].decode(trained["bpe"].encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_digits_makes_each_digit_a_token(kind):
    """Digits are split as in PaLM (arXiv:2204.02311, section 4), also from the space before them."""
    texts = ["In 2022 she sold 2022 of 1999, or 19992022 of them, for 34567.80 each to e2e.\n" * 20]

    def merged_digits(**options):
        names = train_tokenizer_on_texts(kind, texts, vocabulary=340, **options).library.get_vocab()
        return {name for name in names if re.search("[0-9]", name) and len(name) > 1 and not name.startswith("<")}

    assert merged_digits()
    assert merged_digits(digits=True) == set()
    tokenizer = train_tokenizer_on_texts(kind, texts, vocabulary=340, digits=True)
    pieces = [tokenizer.library.id_to_token(id_) for id_ in tokenizer.encode("sold 2022").tolist()]
    assert pieces[-5:] == ["▁", "2", "0", "2", "2"]
    assert tokenizer.decode(tokenizer.encode("sold 1999 of e2e")) == "sold 1999 of e2e"


def test_byte_bpe_has_ids_of_gpt2(trained):
    special = trained["byte-bpe"].special
    assert special.size == 600
    assert special.end == 599
    assert special.specials == {599}
    assert special.pad is None


def test_wordpiece_has_ids_of_bert(trained):
    special = trained["wordpiece"].special
    assert (special.pad, special.cls, special.sep, special.mask) == (0, 2, 3, 4)
    assert special.specials == {0, 1, 2, 3, 4}
    assert special.size == 600
    assert special.end is None


def test_unigram_has_ids_of_t5(trained):
    special = trained["unigram"].special
    assert special.pad == 0
    assert special.end == 1
    assert special.sentinels == tuple(range(special.size - 1, special.size - 21, -1))
    assert special.specials == {0, 1, 2, *special.sentinels}


@pytest.mark.parametrize(("lowercase", "decoded"), [(False, "The Parser"), (True, "the parser")])
def test_wordpiece_option_lowercase(lowercase, decoded, texts):
    tokenizer = train_tokenizer_on_texts("wordpiece", texts, vocabulary=600, lowercase=lowercase)
    assert tokenizer.decode(tokenizer.encode("The Parser")) == decoded


@pytest.mark.parametrize("kind", KINDS)
def test_too_small_vocabulary_is_rejected(kind, texts):
    with pytest.raises(UserError, match="vocabulary"):
        train_tokenizer_on_texts(kind, texts, vocabulary=3 if kind == "words" else 103)


@pytest.mark.parametrize("kind", KINDS)
def test_small_text_gives_smaller_vocabulary(kind):
    tokenizer = train_tokenizer_on_texts(kind, ["the cat sat on the mat\n" * 3], vocabulary=5000)
    assert len(tokenizer.encode("the cat")) > 0
    assert tokenizer.vocabulary < 500


@pytest.mark.parametrize("kind", KINDS)
def test_training_without_text_is_rejected(kind):
    with pytest.raises(UserError, match="no text"):
        train_tokenizer_on_texts(kind, ["", " \n"], vocabulary=500)


def test_unknown_kind_is_rejected():
    with pytest.raises(UserError, match="bpe, byte-bpe, char-bpe, wordpiece, unigram, words"):
        train_tokenizer_on_texts("letters", ["text"], vocabulary=500)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("unigram", {"specials": "gpt2"}, r"specials \(gpt2\) has no unknown token, which kind unigram needs"),
        ("unigram", {"specials": "robreta"}, r"specials \(robreta\) is not known; did you mean roberta"),
        ("byte-bpe", {"lowercase": True}, "kind byte-bpe has no option lowercase, .*: use one of char-bpe, wordpiece"),
        ("bpe", {"lowercase": False}, "kind bpe has no option lowercase"),
        ("byte-bpe", {"digits": True}, "kind byte-bpe has no option digits: use one of bpe, unigram."),
        ("words", {"sentinels": -1}, "sentinels must be 0 or more, not -1"),
    ],
)
def test_incompatible_options_are_rejected(kind, options, message):
    with pytest.raises(UserError, match=message):
        train_tokenizer_on_texts(kind, ["text"], vocabulary=500, **options)


def test_command_has_same_kinds():
    assert tuple(KINDS) == command.KINDS


SUPPORTED = [
    (kind, specials)
    for kind in KINDS
    for specials, special_set in SPECIALS.items()
    if "unknown" in special_set.roles or not KINDS[kind].needs_unknown
]


@pytest.mark.parametrize(("kind", "specials"), SUPPORTED)
def test_special_tokens_have_published_ids(kind, specials, texts):
    """`first` have the ids 0, 1 ...; `last` have the highest ids except sentinels."""
    special_set = SPECIALS[specials]
    tokenizer = train_tokenizer_on_texts(kind, texts[1:], vocabulary=460, specials=specials, sentinels=2)
    size, find_id = tokenizer.vocabulary, tokenizer.library.token_to_id
    last = (*special_set.last, "<extra_id_1>", "<extra_id_0>")
    assert [find_id(name) for name in special_set.first] == list(range(len(special_set.first)))
    assert [find_id(name) for name in last] == list(range(size - len(last), size))
    assert tokenizer.special.specials == {*map(find_id, (*special_set.first, *last))}
    assert tokenizer.special.sentinels == (size - 1, size - 2)
    for role in ("pad", "end", "begin", "cls", "sep", "mask"):
        name = special_set.roles.get(role)
        assert getattr(tokenizer.special, role) == (None if name is None else find_id(name))


def test_roberta_has_published_ids(trained):
    special = trained["RoBERTa"].special
    assert special.begin == special.cls == 0
    assert special.pad == 1
    assert special.end == special.sep == 2
    assert special.mask == special.size - 1


def test_words_are_sorted_by_frequency():
    tokenizer = train_tokenizer_on_texts("words", ["b, a b (c) a b\n"], vocabulary=6)
    assert [tokenizer.library.id_to_token(id_) for id_ in range(6)] == ["<unk>", "<s>", "</s>", "b", "a", "("]
    assert tokenizer.encode("a b, Z").tolist() == [4, 3, 0, 0]
    assert tokenizer.decode([4, 3]) == "a b"


def test_char_bpe_marks_ends_of_words_and_lowercases():
    tokenizer = train_tokenizer_on_texts("char-bpe", ["the the then\n" * 9], vocabulary=500)
    ids = tokenizer.encode("The then").tolist()
    assert [tokenizer.library.id_to_token(id_) for id_ in ids] == ["the</w>", "then</w>"]
    assert tokenizer.decode(ids) == "the then"
    assert tokenizer.vocabulary == 2 + 2 * 4 + len(tokenizer.content["model"]["merges"])


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_special_tokens_in_text_are_not_learned(kind):
    text = "a <s>b</s> <s>c</s> x<mask>y <extra_id_0>\n" * 300
    tokenizer = train_tokenizer_on_texts(kind, [text], vocabulary=400, specials="roberta", sentinels=1)
    unknown = tokenizer.library.token_to_id("<unk>")
    assert set(tokenizer.encode(text).tolist()) & tokenizer.special.specials <= {unknown}
