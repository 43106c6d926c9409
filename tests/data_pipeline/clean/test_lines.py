import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.lines import BOILERPLATE, DropLines
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import texts


@pytest.mark.parametrize("phrase", BOILERPLATE)
def test_boilerplate_lines_are_removed_in_any_case(phrase):
    assert texts(DropLines(), f"Text.\n  » {phrase.title()} «\nMore text.\n") == ["Text.\nMore text.\n"]


def test_long_lines_are_retained():
    line = "We use cookies" + " and tell you why" * 20
    assert texts(DropLines(), line) == [line]
    assert texts(DropLines(max_characters=1000), line) == [""]


def test_custom_phrases_and_patterns():
    step = DropLines(phrases=("Advertisement",), patterns=(r"^\d+ comments?$", "^#"))
    assert texts(step, "12 comments\na #tag, 12 comments here\n#tag\nADVERTISEMENT\nend") == [
        "a #tag, 12 comments here\nend"
    ]


def test_patterns_match_lines_with_crlf():
    step = DropLines(patterns=(r"^\d+ comments?$",))
    assert texts(step, "text\r\n12 comments\r\nmore\r\n") == ["text\r\nmore\r\n"]


def test_invalid_pattern_is_rejected():
    with pytest.raises(UserError, match=r"drop-lines: patterns: `\(` is not a regular expression"):
        DropLines(patterns=("(",))


@given(st.lists(st.sampled_from(["back to top", "text", "", "\n", "\r\n", "Share this:", "a" * 201])))
def test_drop_lines_is_idempotent(pieces):
    once = texts(DropLines(), "".join(pieces))
    assert texts(DropLines(), *once) == once
