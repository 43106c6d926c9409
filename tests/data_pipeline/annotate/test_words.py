"""Word starts: BERT's own rule, and Chinese words."""

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from data_pipeline.annotate import Annotations
from data_pipeline.annotate.words import word_offsets, word_starts
from megaptm.errors import UserError
from tests.data_pipeline.unspaced import WORDS, sentence


def words(text: str, chinese: str = "characters") -> list[str]:
    """Without white space."""
    borders = [*word_offsets(text, chinese).tolist(), len(text)]
    return [word for word in (text[first:stop].strip() for first, stop in pairwise(borders)) if word]


TEXTS = [
    ("It isn't a_b.", ["It", "isn", "'", "t", "a", "_", "b", "."]),
    ("3.14 km²\n\n--x", ["3", ".", "14", "km²", "-", "-", "x"]),
    ("北京ab市", ["北", "京", "ab", "市"]),
    ("ひらカナ", ["ひ", "ら", "カ", "ナ"]),
    ("e\u0301te\u0301 。\u0301", ["e\u0301te\u0301", "。\u0301"]),
    ("서울은 नमस्ते", ["서울은", "नमस्ते"]),
    ("ฉันกินน้ำ 12ที่", ["ฉั", "น", "กิ", "น", "น้ำ", "12", "ที่"]),
    ("ແມ່ນ້ຳ", ["ແ", "ມ່", "ນ້ຳ"]),
    ("ខ្ញុំ", ["ខ្", "ញុំ"]),
    ("မြို့သူ", ["မြို့", "သူ"]),
    ("བོད་ཡིག", ["བོད", "་", "ཡིག"]),
    ("ｶﾞｷꆈꌠ", ["ｶﾞ", "ｷ", "ꆈ", "ꌠ"]),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_words(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize("language", WORDS)
def test_sentence_without_spaces_is_many_words(language):
    """Whole-word masking would hide all of a sentence that is one word. A token of marks belongs to the word before
    it."""
    text = sentence(language, 0)
    tokens = [text[at : at + 2] for at in range(0, len(text), 2)]
    ends = np.cumsum([len(token) for token in tokens])
    is_letter = [
        [unicodedata.category(character)[0] != "M" and character not in "ำຳ" for character in token] for token in tokens
    ]
    assert word_starts(text, ends).tolist() == [index for index, letters in enumerate(is_letter) if any(letters)]


def test_words_match_bert_pre_tokenizer(prose):
    """BERT's own splitting of the same text, where it does not drop characters and treats kana as other letters."""
    normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    splitter = pre_tokenizers.BertPreTokenizer()
    for text in prose:
        plain = "".join(c for c in text if unicodedata.category(c)[0] not in "CM" and not 0x3041 <= ord(c) <= 0x30FF)
        expected = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(plain))]
        assert words(plain) == expected


@settings(deadline=None)
@given(text=st.text())
def test_word_offsets_ascend_within_text(text):
    starts = word_offsets(text).tolist()
    assert starts == sorted(set(starts))
    assert starts[:1] == [0] * bool(text)
    assert all(begin < len(text) for begin in starts)


def in_twos(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(0, len(run), 2)]


def upside_down(run: str) -> str:
    return run[::-1]


def test_segmenter_function():
    function = f"{__name__}:in_twos"
    assert words("北京大学在 ab 海", function) == ["北京", "大学", "在", "ab", "海"]
    assert words("ひら", function) == ["ひ", "ら"]


def test_word_list_segmenter(tmp_path):
    dictionary = tmp_path / "words.txt"
    dictionary.write_text("# as jieba has them\n北京 34488 ns\n北京大学\n大学\n", encoding="utf-8")
    assert words("北京大学在 ab 北京海大学", str(dictionary)) == ["北京大学", "在", "ab", "北京", "海", "大学"]
    assert Annotations(words=True, chinese=str(dictionary)).input_files() == (str(dictionary),)
    for text, message in (("", "has no words"), (None, "cannot be read")):
        other = tmp_path / f"{message}.txt"
        if text is not None:
            other.write_text(text)
        with pytest.raises(UserError, match=rf"annotate\.chinese.*{message}"):
            Annotations(words=True, chinese=str(other)).check()


def test_jieba_segmenter():
    pytest.importorskip("jieba")
    assert words("我来到北京清华大学。", "words") == ["我", "来到", "北京", "清华大学", "。"]


def test_segmenter_that_changes_text_is_rejected():
    with pytest.raises(UserError, match=r"annotate\.chinese.*do not concatenate to it"):
        words("北京大学", f"{__name__}:upside_down")
