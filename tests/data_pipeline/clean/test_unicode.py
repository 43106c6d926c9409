import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.unicode import NormalizeUnicode, RepairEncoding
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import texts

WRITTEN = ["schön", "naïve café", "“quoted” \u2013 and… it\u2019s", "日本語の文字", "Привет", "Πώς", "€ 5", "ñandú"]


@pytest.mark.parametrize("text", WRITTEN)
def test_text_read_in_the_wrong_encoding_is_repaired(text):
    broken = text.encode().decode("latin-1")
    assert texts(RepairEncoding(), f"fine line\n{broken}\nfine line\n") == [f"fine line\n{text}\nfine line\n"]


@pytest.mark.parametrize(
    "text",
    [
        *WRITTEN,
        "plain ASCII &amp; entities stay, `quotes' and ''quotes'' too",
        "ﬁne ligatures, \uff46\uff55\uff4c\uff4c width, “curled” quotes and a\u0301ccents stay",
        "SÃO PAULO, ŒUVRES, 5 Å",
        "\n".join(WRITTEN),
    ],
)
def test_text_that_is_right_stays(text):
    assert texts(RepairEncoding(), text) == [text]


def test_each_line_is_repaired_by_itself():
    assert texts(RepairEncoding(), "日本\nschÃ¶n\n日本\r\n\nvoilÃ\xa0") == ["日本\nschön\n日本\r\n\nvoilà"]


@given(st.lists(st.sampled_from(["Ã¶", "â€œ", "ö", "字", " ", "\n", "a", "\x85", "Â", "\x93"]), max_size=12))
def test_repairing_twice_is_repairing_once(pieces):
    once = texts(RepairEncoding(), "".join(pieces))
    assert texts(RepairEncoding(), *once) == once


def test_composed_letters_by_default():
    assert texts(NormalizeUnicode(), "cafe\u0301 ﬁ \uff26 ²") == ["café ﬁ \uff26 ²"]


def test_compatibility_letters_when_asked():
    assert texts(NormalizeUnicode(form="NFKC"), "cafe\u0301 ﬁ \uff26 ²") == ["café fi F 2"]


def test_characters_that_cannot_be_seen_go_and_those_of_spelling_stay():
    seen = "a\tb\r\nc\u200cd\u200de\u200ff👨\u200d👩\u00a0x\u3000y"
    unseen = "\ufeffa\x00\x07\x1b\x7f\u200b\u2060\u00ad\ud800\ufffe" + seen
    assert texts(NormalizeUnicode(), unseen) == ["a" + seen]
    assert texts(NormalizeUnicode(), "\x00plain\x1b") == ["plain"]
    assert texts(NormalizeUnicode(remove_invisible=False), "\ufeffa\x00") == ["\ufeffa\x00"]


def test_what_ends_a_line_or_a_page_keeps_words_apart():
    assert texts(NormalizeUnicode(), "end\x0cof\x0bpage\x1c.\n\x0cNext") == ["end\nof\npage\n.\n\nNext"]
    assert texts(NormalizeUnicode(), "Ende\x0cüber\x0b") == ["Ende\nüber\n"]
    assert texts(NormalizeUnicode(remove_invisible=False), "a\x0cb") == ["a\x0cb"]


def test_case_is_folded_when_asked():
    assert texts(NormalizeUnicode(fold_case=True), "ÉCOLE Straße") == ["école straße"]
    assert texts(NormalizeUnicode(form="NFKC", fold_case=True), "\U0001d4a9") == ["n"]


def test_traditional_chinese_becomes_simplified_when_asked():
    pytest.importorskip("opencc")
    assert texts(NormalizeUnicode(simplify_chinese=True), "漢字與頭髮發現") == ["汉字与头发发现"]
    assert texts(NormalizeUnicode(), "漢字") == ["漢字"]


@given(text=st.text(), form=st.sampled_from(["NFC", "NFD", "NFKC", "NFKD", "none"]), fold=st.booleans())
def test_normalizing_twice_is_normalizing_once(text, form, fold):
    step = NormalizeUnicode(form=form, fold_case=fold)
    once = texts(step, text)
    assert texts(step, *once) == once
    assert form == "none" or unicodedata.is_normalized(form, once[0])


def test_a_form_has_a_name():
    with pytest.raises(UserError, match=r"normalize-unicode: form \(NFX\) is not known: use one of NFC"):
        NormalizeUnicode(form="NFX")
