import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.annotate.sentences import sentence_starts
from tests.data_pipeline.annotate.pieces import split_sentences


@settings(deadline=None)
@given(
    text=st.text(alphabet=st.characters() | st.sampled_from(list(".!?\n \t。\"')aA"))),
    form=st.sampled_from(["prose", "code"]),
)
def test_sentences_concatenate_to_text(text, form):
    pieces = split_sentences(text, form)
    assert "".join(pieces) == text
    assert all(pieces)


PROSE = [
    ("It runs. It stops! Does it? Yes.", ["It runs.", "It stops!", "Does it?", "Yes."]),
    ("Dr. Smith, e.g. J. R. Smith, came vs. nobody.", ["Dr. Smith, e.g. J. R. Smith, came vs. nobody."]),
    ('He said "Go." Then he went.', ['He said "Go."', "Then he went."]),
    ("It costs 3.14 dollars at example.com today.", ["It costs 3.14 dollars at example.com today."]),
    ("wrapped over\ntwo lines. A second\none", ["wrapped over\ntwo lines.", "A second\none"]),
    ("A heading\n\nA paragraph\n \nanother", ["A heading", "A paragraph", "another"]),
    ("and so on... or not. really", ["and so on... or not. really"]),
    ("これは文です。次の文です！終わり", ["これは文です。", "次の文です！", "終わり"]),  # noqa: RUF001
]


@pytest.mark.parametrize(("text", "sentences"), PROSE)
def test_prose_sentences(text, sentences):
    assert [piece.strip() for piece in split_sentences(text)] == sentences


def test_code_splits_into_lines():
    code = "def f(x):\n    return x. Y\n\n\nf(1)\n"
    assert split_sentences(code, "code") == ["def f(x):\n", "    return x. Y\n\n\n", "f(1)\n"]


@pytest.mark.parametrize(("text", "form"), [("." * 200_000, "prose"), ("x" + "\n" * 1_000_000, "code")])
def test_many_marks_take_linear_time(text, form):
    """In quadratic time, this takes minutes. The limit of time per document does not hold for annotations."""
    assert sentence_starts(text, form).tolist() == [0]
