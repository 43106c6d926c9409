import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean import run_steps
from data_pipeline.clean.unicode import MAX_MARKS, NormalizeUnicode, RepairEncoding
from data_pipeline.document import Document, DropCounts
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import texts

WRITTEN = ["schön", "naïve café", "“quoted” \u2013 and… it\u2019s", "日本語の文字", "Привет", "Πώς", "€ 5", "ñandú"]


@pytest.mark.parametrize("text", WRITTEN)
def test_repair_encoding(text):
    invalid = text.encode().decode("latin-1")
    assert texts(RepairEncoding(), f"fine line\n{invalid}\nfine line\n") == [f"fine line\n{text}\nfine line\n"]


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
def test_repair_encoding_keeps_valid_text(text):
    assert texts(RepairEncoding(), text) == [text]


def test_repair_encoding_works_per_line():
    assert texts(RepairEncoding(), "日本\nschÃ¶n\n日本\r\n\nvoilÃ\xa0") == ["日本\nschön\n日本\r\n\nvoilà"]


@given(st.lists(st.sampled_from(["Ã¶", "â€œ", "ö", "字", " ", "\n", "a", "\x85", "Â", "\x93"]), max_size=12))
def test_repair_encoding_is_idempotent(pieces):
    once = texts(RepairEncoding(), "".join(pieces))
    assert texts(RepairEncoding(), *once) == once


def test_nfc_by_default():
    assert texts(NormalizeUnicode(), "cafe\u0301 ﬁ \uff26 ²") == ["café ﬁ \uff26 ²"]


def test_nfkc_converts_compatibility_letters():
    assert texts(NormalizeUnicode(form="NFKC"), "cafe\u0301 ﬁ \uff26 ²") == ["café fi F 2"]


def test_invisible_characters_are_removed():
    visited = "a\tb\r\nc\u200cd\u200de\u200ff👨\u200d👩\u00a0x\u3000y"
    unseen = "\ufeffa\x00\x07\x1b\x7f\u200b\u2060\u00ad\ud800\ufffe" + visited
    assert texts(NormalizeUnicode(), unseen) == ["a" + visited]
    assert texts(NormalizeUnicode(), "\x00plain\x1b") == ["plain"]
    assert texts(NormalizeUnicode(remove_invisible=False), "\ufeffa\x00") == ["\ufeffa\x00"]


def test_form_feeds_become_line_ends():
    assert texts(NormalizeUnicode(), "end\x0cof\x0bpage\x1c.\n\x0cNext") == ["end\nof\npage\n.\n\nNext"]
    assert texts(NormalizeUnicode(), "Ende\x0cüber\x0b") == ["Ende\nüber\n"]
    assert texts(NormalizeUnicode(remove_invisible=False), "a\x0cb") == ["a\x0cb"]


def test_fold_case():
    assert texts(NormalizeUnicode(fold_case=True), "ÉCOLE Straße") == ["école straße"]
    assert texts(NormalizeUnicode(form="NFKC", fold_case=True), "\U0001d4a9") == ["n"]


def test_simplify_chinese():
    pytest.importorskip("opencc")
    assert texts(NormalizeUnicode(simplify_chinese=True), "漢字與頭髮發現") == ["汉字与头发发现"]
    assert texts(NormalizeUnicode(), "漢字") == ["漢字"]


@given(text=st.text(), form=st.sampled_from(["NFC", "NFD", "NFKC", "NFKD", "none"]), fold=st.booleans())
def test_normalize_unicode_is_idempotent(text, form, fold):
    step = NormalizeUnicode(form=form, fold_case=fold)
    once = texts(step, text)
    assert texts(step, *once) == once
    assert form == "none" or unicodedata.is_normalized(form, once[0])


def test_unknown_form_is_rejected():
    with pytest.raises(UserError, match=r"normalize-unicode: form \(NFX\) is not known: use one of NFC"):
        NormalizeUnicode(form="NFX")


@pytest.mark.parametrize("mark", ["\u0301", "\u0301\u0316", "\u0e48"])
def test_too_many_marks_on_a_letter_are_refused(mark):
    """Python sorts marks in quadratic time: eight million of them would take hours."""
    allowed = "a" + (MAX_MARKS // len(mark)) * mark
    [text] = texts(NormalizeUnicode(), f"one {allowed} two")
    assert unicodedata.is_normalized("NFC", text)
    documents = [Document(f"one {allowed}{mark} two", "0.txt"), Document("กิ" * MAX_MARKS, "1.txt")]
    dropped = DropCounts()
    retained = list(run_steps([NormalizeUnicode()], documents, dropped, "skip"))
    assert [document.source for document in retained] == ["1.txt"]
    assert dropped.messages == {"normalize-unicode failed": "ValueError: more than 1,024 marks follow one letter"}
