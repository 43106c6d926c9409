"""What training promises: the published layouts of ids, the same result every time, one sentence for what cannot be."""

import os
import re
import subprocess
import sys

import pytest

from megaptm.commands import tokenizer as command
from megaptm.errors import UserError
from megaptm.tokenizers import KINDS, SPECIALS, train

TRAIN_ALONE = """
import sys, argparse
from megaptm.tokenizers import KINDS, train
texts = [open(argparse.__file__, encoding="utf-8").read(), "naïve 漢字 ünï — “quoted”"]
for kind in KINDS:
    print(train(kind, texts, vocabulary=500).fingerprint)
"""


def test_training_does_not_depend_on_the_process_or_its_threads():
    def fingerprints(threads: str) -> str:
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        run = [sys.executable, "-c", TRAIN_ALONE]
        return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout

    assert fingerprints("1") == fingerprints("2")


def test_bpe_begins_as_llama_does_and_spells_what_it_does_not_know_in_bytes(trained):
    special = trained["bpe"].special
    assert (special.begin, special.end, special.specials) == (1, 2, {0, 1, 2})
    assert trained["bpe"].encode("\n").tolist()[-1] == 3 + 0x0A
    assert trained["bpe"].encode("☃").tolist()[-3:] == [3 + byte for byte in "☃".encode()]
    text = "def f(x):\n    return x  # ☃ naïve 漢字\n"
    assert trained["bpe"].decode(trained["bpe"].encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_each_digit_is_a_token_where_that_is_asked(kind):
    """As PaLM has it (arXiv:2204.02311, section 4): joined with nothing, not even with the space before a number."""
    texts = ["In 2022 she sold 2022 of 1999, or 19992022 of them, for 34567.80 each to e2e.\n" * 20]

    def joined(**options):
        names = train(kind, texts, vocabulary=340, **options).library.get_vocab()
        return {name for name in names if re.search("[0-9]", name) and len(name) > 1 and not name.startswith("<")}

    assert joined()
    assert joined(digits=True) == set()
    apart = train(kind, texts, vocabulary=340, digits=True)
    pieces = [apart.library.id_to_token(id_) for id_ in apart.encode("sold 2022").tolist()]
    assert pieces[-5:] == ["▁", "2", "0", "2", "2"]
    assert apart.decode(apart.encode("sold 1999 of e2e")) == "sold 1999 of e2e"


def test_byte_bpe_ends_with_the_end_of_text_as_gpt2_does(trained):
    special = trained["byte-bpe"].special
    assert special.size == 600
    assert special.end == 599
    assert special.specials == {599}
    assert special.pad is None


def test_wordpiece_begins_with_the_five_tokens_of_bert(trained):
    special = trained["wordpiece"].special
    assert (special.pad, special.cls, special.sep, special.mask) == (0, 2, 3, 4)
    assert special.specials == {0, 1, 2, 3, 4}
    assert special.size == 600
    assert special.end is None


def test_unigram_lays_out_its_ids_as_t5_does(trained):
    special = trained["unigram"].special
    assert (special.pad, special.end) == (0, 1)
    assert special.sentinels == tuple(range(special.size - 1, special.size - 21, -1))
    assert special.specials == {0, 1, 2, *special.sentinels}


def test_wordpiece_keeps_case_when_asked(texts):
    upper, lower = (train("wordpiece", texts, vocabulary=600, lowercase=lower) for lower in (False, True))
    assert upper.decode(upper.encode("The Parser")) == "The Parser"
    assert lower.decode(lower.encode("The Parser")) == "the parser"


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_too_small_for_its_characters_is_refused(kind, texts):
    with pytest.raises(UserError, match="vocabulary"):
        train(kind, texts, vocabulary=3 if kind == "words" else 103)


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_text_gives_fewer_ids_than_asked(kind):
    tokenizer = train(kind, ["the cat sat on the mat\n" * 3], vocabulary=5000)
    assert len(tokenizer.encode("the cat")) > 0
    assert tokenizer.vocabulary < 500


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_refused(kind):
    with pytest.raises(UserError, match="no text"):
        train(kind, ["", " \n"], vocabulary=500)


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(UserError, match="bpe, byte-bpe, char-bpe, wordpiece, unigram, words"):
        train("letters", ["text"], vocabulary=500)


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("unigram", {"specials": "gpt2"}, r"specials \(gpt2\) has no token for what kind unigram does not know"),
        ("unigram", {"specials": "robreta"}, r"specials \(robreta\) is not known; did you mean roberta"),
        ("byte-bpe", {"lowercase": True}, "lowercase is not for kind byte-bpe, .*: use one of char-bpe, wordpiece"),
        ("bpe", {"lowercase": False}, "lowercase is not for kind bpe"),
        ("byte-bpe", {"digits": True}, "digits is not for kind byte-bpe: use one of bpe, unigram."),
        ("words", {"sentinels": -1}, "sentinels must be 0 or more, not -1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(kind, options, sentence):
    with pytest.raises(UserError, match=sentence):
        train(kind, ["text"], vocabulary=500, **options)


def test_the_command_knows_the_same_kinds_and_special_tokens():
    assert (tuple(KINDS), tuple(SPECIALS)) == (command.KINDS, command.SPECIALS)


@pytest.mark.parametrize("specials", SPECIALS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_the_special_tokens_of_every_family(kind, specials, texts):
    """Ids as published: the first are 0, 1 ..., the last are behind all, sentinels are the very last."""
    chosen = SPECIALS[specials]
    if KINDS[kind].unknown and "unknown" not in chosen.roles:
        pytest.skip("refused")
    tokenizer = train(kind, texts[1:], vocabulary=460, specials=specials, sentinels=2)
    size, id_of = tokenizer.vocabulary, tokenizer.library.token_to_id
    last = (*chosen.last, "<extra_id_1>", "<extra_id_0>")
    assert [id_of(name) for name in chosen.first] == list(range(len(chosen.first)))
    assert [id_of(name) for name in last] == list(range(size - len(last), size))
    assert tokenizer.special.specials == {*map(id_of, (*chosen.first, *last))}
    assert tokenizer.special.sentinels == (size - 1, size - 2)
    for role in ("pad", "end", "begin", "cls", "sep", "mask"):
        name = chosen.roles.get(role)
        assert getattr(tokenizer.special, role) == (None if name is None else id_of(name))


def test_roberta_lays_out_its_ids_as_published(trained):
    special = trained["RoBERTa"].special
    assert (special.cls, special.pad, special.sep, special.mask) == (0, 1, 2, special.size - 1)
    assert (special.begin, special.end) == (special.cls, special.sep)


def test_words_are_the_most_frequent_ones_and_the_rest_is_unknown():
    tokenizer = train("words", ["b, a b (c) a b\n"], vocabulary=6)
    assert [tokenizer.library.id_to_token(number) for number in range(6)] == ["<unk>", "<s>", "</s>", "b", "a", "("]
    assert tokenizer.encode("a b, Z").tolist() == [4, 3, 0, 0]
    assert tokenizer.decode([4, 3]) == "a b"


def test_char_bpe_ends_words_with_a_mark_and_forgets_case_as_gpt_does():
    tokenizer = train("char-bpe", ["the the then\n" * 9], vocabulary=500)
    ids = tokenizer.encode("The then").tolist()
    assert [tokenizer.library.id_to_token(number) for number in ids] == ["the</w>", "then</w>"]
    assert tokenizer.decode(ids) == "the then"
    assert tokenizer.vocabulary == 2 + 2 * 4 + len(tokenizer.content["model"]["merges"])


def test_a_text_full_of_the_names_of_special_tokens_teaches_none_of_them():
    for kind in KINDS:
        text = "a <s>b</s> <s>c</s> x<mask>y <extra_id_0>\n" * 300
        tokenizer = train(kind, [text], vocabulary=400, specials="roberta", sentinels=1)
        unknown = tokenizer.library.token_to_id("<unk>")
        assert set(tokenizer.encode(text).tolist()) & tokenizer.special.specials <= {unknown}, kind
