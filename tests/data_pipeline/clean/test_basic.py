import re
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean import CLEAN, STEPS, run_steps
from data_pipeline.clean.basic import CutLong, DropEmpty, DropFewLetters, DropLong, DropShort, Normalize
from data_pipeline.document import EXAMPLES, Document, DropCounts
from megaptm.errors import UserError
from tests.data_pipeline.clean.test_step import REQUIRED


def clean(*texts: str, steps=CLEAN) -> tuple[list[str], DropCounts]:
    dropped = DropCounts()
    documents = (Document(text, f"{number}.txt") for number, text in enumerate(texts))
    return [document.text for document in run_steps(steps, documents, dropped)], dropped


def test_normalize_unifies_line_ends():
    assert clean("\r\n\none\r\ntwo\rthree\n\n", steps=[Normalize()])[0] == ["one\ntwo\nthree\n"]


@given(text=st.text())
def test_normalize_is_idempotent(text):
    once = clean(text, steps=[Normalize()])[0]
    assert clean(*once, steps=[Normalize()])[0] == once


def test_drop_empty():
    retained, dropped = clean("", " \n\t", "words", steps=[DropEmpty()])
    assert retained == ["words"]
    assert dropped.counts == {"empty": 2}
    assert dropped.examples == {"empty": [("0.txt", ""), ("1.txt", " \n\t")]}


def test_drop_short_by_characters():
    retained, dropped = clean("four", "12345  ", "123456", steps=[DropShort(characters=6)])
    assert retained == ["123456"]
    assert dropped.counts == {"shorter than 6 characters": 2}


def test_drop_long():
    retained, dropped = clean("123456", " 12345 ", "1 2 3", "1 2", steps=[DropLong(characters=5, words=2)])
    assert retained == [" 12345 ", "1 2"]
    assert dropped.counts == {"longer than 5 characters": 1, "longer than 2 words": 1}


def test_drop_few_letters():
    retained, dropped = clean("IMG_0017", "ab 12", "a 123", "हिन्दी", "図1", "", steps=[DropFewLetters(share=0.5)])
    assert retained == ["ab 12", "हिन्दी", "図1", ""]
    assert dropped.counts == {"less than 50% letters": 2}


@pytest.mark.parametrize("invalid", [lambda: DropLong(characters=0), lambda: DropFewLetters(share=1.5)])
def test_out_of_range_options_are_rejected(invalid):
    with pytest.raises(UserError, match=r"^drop-(long|few-letters): "):
        invalid()


def test_examples_per_reason_are_limited():
    _, dropped = clean(*[""] * 100)
    assert dropped.counts == {"empty": 100}
    other = DropCounts()
    other.merge(dropped)
    other.merge(dropped)
    assert other.counts == {"empty": 200}
    assert len(other.examples["empty"]) == EXAMPLES


@given(text=st.text(alphabet="ab \n", min_size=1), characters=st.integers(1, 20))
def test_cut_pieces_concatenate_to_text(text, characters):
    pieces, dropped = clean(text, steps=[CutLong(characters=characters)])
    assert "".join(pieces) == text
    assert all(1 <= len(piece) <= characters for piece in pieces)
    assert not dropped.counts


def test_cut_long_prefers_blank_lines():
    assert clean("one two\n\nthree\nfour\n", steps=[CutLong(characters=12)])[0] == ["one two\n\n", "three\nfour\n"]
    assert clean("one two\nthree\nfour\n", steps=[CutLong(characters=12)])[0] == ["one two\n", "three\nfour\n"]
    assert clean("one two three", steps=[CutLong(characters=12)])[0] == ["one two thre", "e"]


def test_cut_pieces_are_named_by_offset():
    document = Document("one two\n\nthree\n", "book.txt")
    pieces = list(CutLong(characters=12)([document, Document("short", "note.txt")], DropCounts()))
    assert [piece.source for piece in pieces] == ["book.txt@0", "book.txt@9", "note.txt"]


def test_words_are_counted_in_scripts_without_spaces():
    long, short = (
        clean("กขค" * 3, "字" * 3, "字", steps=[DropLong(words=2)]),
        clean("กขค" * 3, "กข", steps=[DropShort(1, 2)]),
    )
    assert (long[0], short[0]) == (["字"], ["กขค" * 3])


def test_drop_short_by_words():
    retained, dropped = clean("one two", "one two three", "a" * 100, steps=[DropShort(characters=1, words=3)])
    assert retained == ["one two three"]
    assert dropped.counts == {"shorter than 3 words": 2}


def test_cut_pieces_keep_their_turns():
    document = Document("one two\n\nthree\n", "talk", notes={"turns": [[0, "a"], [9, "b"], [12, "a"]]})
    pieces = list(CutLong(characters=12)([document], DropCounts()))
    assert [piece.notes["turns"] for piece in pieces] == [[[0, "a"]], [[0, "b"], [3, "a"]]]


def test_cut_long_needs_positive_length():
    with pytest.raises(UserError, match=r"cut-long: characters \(0\) must be 1 or more"):
        CutLong(characters=0)


@pytest.mark.parametrize("name", [name for name in STEPS if name != "score-quality"])  # scores may be negative
def test_negative_step_options_are_rejected(name):
    kind, needed = STEPS[name], REQUIRED.get(name, {})
    numbers = [field.name for field in fields(kind) if re.fullmatch(r"(int|float)( \| None)?", str(field.type))]
    for name in numbers:
        with pytest.raises(UserError, match=rf"{name} \(-3\) must be"):
            kind(**needed | {name: -3})
