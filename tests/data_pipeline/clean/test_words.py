import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.words import MAX_HASHED_BYTES, UNSPACED, Words, has_words

TEXTS = st.text(alphabet=st.sampled_from("aBz09_.,'-  \n\té\u0301ÉñİßΓδ字の漢ก่한🙂\u3000—“”\u00a0𐐀𐐨"), max_size=60)


def strings(text, **options):
    words, encoded = Words(text, **options), text.encode("utf-8", "surrogatepass")
    return [encoded[start:end].decode() for start, end in zip(words.starts, words.ends, strict=True)]


def test_letter_words_exclude_punctuation():
    assert strings("Don't stop, e-mail_me (2 times)!") == ["Don", "t", "stop", "e", "mail", "me", "2", "times"]


def test_space_words_include_punctuation():
    assert strings("Don't stop,\n(2\u00a0times)!", split="spaces") == ["Don't", "stop,", "(2", "times)!"]


@pytest.mark.parametrize("split", ["letters", "spaces"])
def test_chinese_characters_and_kana_are_words(split):
    assert strings("ab漢字cd のx", split=split) == ["ab", "漢", "字", "cd", "の", "x"]


@pytest.mark.parametrize("split", ["letters", "spaces"])
@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("ที่นี่ 2568ปี", "ที่ นี่ 2568 ปี"),
        ("กำลังน้ำ", "กำ ลั ง น้ำ"),
        ("ນ້ຳຢູ່ໃສ", "ນ້ຳ ຢູ່ ໃ ສ"),
        ("ភាសាខ្មែរ", "ភា សា ខ្ មែ រ"),
        ("မြန်မာ", "မြ န် မာ"),
        ("ꦲꦏ꧀ꦱꦫ", "ꦲ ꦏ꧀ ꦱ ꦫ"),
        ("ᦷᦟᦲᧉxᦺᦑ", "ᦷ ᦟ ᦲ ᧉ x ᦺ ᦑ"),
        ("བོད་སྐད", "བོད སྐད"),
        ("ｶﾞｷﾞ", "ｶﾞ ｷﾞ"),
    ],
    ids=["Thai", "Thai am", "Lao", "Khmer", "Burmese", "Javanese", "Dai", "Tibetan", "half-width kana"],
)
def test_scripts_without_spaces_are_split_at_letters(text, letters, split):
    """A vowel sign or tone mark belongs to the letter before it."""
    assert strings(text, split=split) == letters.split()


@pytest.mark.parametrize("split", ["letters", "spaces"])
def test_invisible_spaces_are_no_words(split):
    """Khmer and Burmese web pages have spaces without width (U+200B) between words."""
    assert len(Words("ខ្ញុំ\u200bទៅ\u200bផ្ទះ", split=split)) == len(Words("ខ្ញុំទៅផ្ទះ", split=split)) == 5


@pytest.mark.parametrize(
    ("text", "count"), [("one two", 2), ("字字 one", 3), ("กขคงจฉ", 2), ("กขค one", 2), ("བོད་སྐད་ཡིག", 3), ("", 0)]
)
def test_words_are_counted_in_all_scripts(text, count):
    """In alphabets without spaces, three letters count as a word."""
    assert has_words(text, count)
    assert not has_words(text, count + 1)


def test_combining_marks_belong_to_words():
    assert strings("cafe\u0301 हिन्दी") == ["cafe\u0301", "हिन्दी"]


@given(text=st.text())
def test_space_words_match_str_split(text):
    text = UNSPACED.sub("", text)
    assert strings(text, split="spaces") == text.split()


@given(text=TEXTS)
def test_word_hash_does_not_depend_on_position(text):
    words = strings(text)
    assert Words(text).hashes.tolist() == [Words(word).hashes[0] for word in words]


@given(words=st.lists(st.text(alphabet="abé字", min_size=1, max_size=20), unique=True))
def test_different_words_have_different_hashes(words):
    assert len({int(value) for word in words for value in Words(word, split="spaces").ngrams(1)}) == len(
        {piece for word in words for piece in strings(word, split="spaces")}
    )


@pytest.mark.parametrize(
    ("capital", "small"), [("ABC", "abc"), ("ÉCOLE", "école"), ("ΓΔ", "γδ"), ("𐐀", "𐐨"), ("Ж", "ж")]
)
def test_hashes_ignore_case_by_default(capital, small):
    assert Words(capital).hashes == Words(small).hashes
    assert Words(capital, fold=False).hashes != Words(small, fold=False).hashes


@given(text=TEXTS)
def test_lengths_count_characters(text):
    assert Words(text).lengths.tolist() == [len(word) for word in strings(text)]


@given(text=TEXTS, size=st.integers(1, 6))
def test_equal_ngrams_have_equal_hashes(text, size):
    words, grams = Words(text, fold=False), Words(text, fold=False).ngrams(size)
    spelled = strings(text, fold=False)
    runs = [tuple(spelled[at : at + size]) for at in range(len(words) - size + 1)]
    assert len(grams) == len(runs)
    assert len(np.unique(grams)) == len(set(runs))


def test_ngram_hash_depends_on_order():
    assert Words("one two").ngrams(2) != Words("two one").ngrams(2)


@given(text=TEXTS)
def test_alphabetic_words_contain_a_letter(text):
    expected = [any(character.isalpha() for character in word) for word in strings(text, split="spaces")]
    assert Words(text, split="spaces").alphabetic.tolist() == expected


def test_long_words_are_hashed_to_their_end():
    """URLs are long words that start alike."""
    words = ["a" * MAX_HASHED_BYTES + end for end in ("b", "c", "bb")]
    assert len({*Words(" ".join(words)).hashes.tolist()}) == 3
    assert Words("A" * 200).hashes == Words("a" * 200).hashes


def test_hashes_are_equal_across_processes():
    hashing = "from data_pipeline.clean.words import Words; print(Words('One é 字 words').ngrams(2).tolist())"
    result = {
        subprocess.run(
            [sys.executable, "-c", hashing], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert result == {f"{Words('One é 字 words').ngrams(2).tolist()}\n"}


def test_long_text_hashes_match_pieces():
    pieces = [f"word{number} é{number}" for number in range(20_000)]
    assert (Words(" ".join(pieces)).hashes == np.concatenate([Words(piece).hashes for piece in pieces])).all()


@pytest.mark.parametrize("text", ["", " ", "one", "\ud800"])
def test_short_text_has_no_ngrams(text):
    assert Words(text).ngrams(2).tolist() == []
