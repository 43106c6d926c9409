"""What training promises: the published layouts of ids, the same result every time, one sentence for what cannot be."""

import os
import subprocess
import sys

import pytest

from megaptm.errors import UserError
from megaptm.tokenizers import KINDS, train

TRAIN_ALONE = """
import sys, argparse
from megaptm.tokenizers import train
texts = [open(argparse.__file__, encoding="utf-8").read(), "naïve 漢字 ünï — “quoted”"]
for kind in ("bpe", "byte-bpe", "wordpiece", "unigram"):
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
        train(kind, texts, vocabulary=110)


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
    with pytest.raises(UserError, match="bpe, byte-bpe, wordpiece, unigram"):
        train("words", ["text"], vocabulary=500)
