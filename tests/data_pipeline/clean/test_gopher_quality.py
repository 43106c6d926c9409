from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.gopher_quality import GopherQuality
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import reason, run
from tests.data_pipeline.unspaced import WORDS, page

PROSE = "the cat and that dog have been here with us to see all of it"  # 15 words
STEP = GopherQuality()


def words(count, word="word"):
    """A text of this many words, two of them stop words."""
    return " ".join(["the", "of", *[word] * (count - 2)])


def test_defaults_match_paper():
    assert asdict(STEP) == {
        "min_words": 50,
        "max_words": 100_000,
        "min_mean_word_length": 3,
        "max_mean_word_length": 10,
        "max_symbols_per_word": 0.1,
        "max_bullet_line_share": 0.9,
        "max_ellipsis_line_share": 0.3,
        "min_alphabetic_word_share": 0.8,
        "min_stop_words": 2,
        "stop_words": ("the", "be", "to", "of", "and", "that", "have", "with"),
    }


def test_prose_is_retained():
    assert reason(STEP, " ".join([PROSE] * 4)) is None


def lines(*, plain, marked, mark="{}"):
    line = "the cat and nine other words stand in this line"
    return "\n".join([line] * plain + [mark.format(line)] * marked)


@pytest.mark.parametrize(
    ("retained", "left_out", "why"),
    [
        (words(50), words(49), "fewer than 50 words"),
        (words(100_000), words(100_001), "more than 100,000 words"),
        ("the " * 49 + "and", "the " * 49 + "of", "mean word length below 3"),
        (
            " ".join(["the", "and", *["a" * 10] * 84, *["a" * 11] * 14]),
            " ".join(["the", "and", *["a" * 10] * 83, *["a" * 11] * 15]),
            "mean word length above 10",
        ),
        (words(90) + " #" * 10, words(89) + " #" * 11, "more than 0.1 hash signs per word"),
        (words(89) + " so..." * 10 + " on", words(88) + " so…" * 11 + " on", "more than 0.1 ellipses per word"),
        (
            lines(plain=1, marked=9, mark=" - {}"),
            lines(plain=1, marked=10, mark="• {}"),
            "more than 90% of lines start with a bullet",
        ),
        (
            lines(plain=7, marked=3, mark="{}..."),
            lines(plain=6, marked=3, mark="{}… "),
            "more than 30% of lines end with an ellipsis",
        ),
        (words(80) + " 123" * 20, words(79) + " 123" * 21, "less than 80% of words with a letter"),
        ("The word " * 25 + "with", "the word " * 25, "fewer than 2 stop words"),
    ],
)
def test_gopher_quality_rule_bounds(retained, left_out, why):
    assert reason(STEP, retained) is None
    assert reason(STEP, left_out) == why


@pytest.mark.parametrize("end", ["the of", "(The) \u201cOF\u201d"])
def test_stop_words_match_anywhere_in_any_case(end):
    assert reason(STEP, "word " * 1000 + end) is None


@pytest.mark.parametrize("language", WORDS)
def test_pages_without_spaces_pass_with_stop_words_of_their_language(language):
    """Three letters count as a word, so that the default numbers fit."""
    step = GopherQuality(stop_words=tuple(WORDS[language].split()[-6:-2]))
    assert reason(step, page(language, *range(20))) is None
    assert reason(step, page(language, 0)) == "fewer than 50 words"
    assert reason(STEP, page(language, *range(20))) == "fewer than 2 stop words"


def test_blank_lines_are_not_counted():
    bullets = "\r\n \r\n".join(["- the first and second of all"] * 19 + ["the first of all"])
    assert reason(GopherQuality(min_words=1), bullets) == "more than 90% of lines start with a bullet"


def test_null_disables_rules():
    off = {name: None for name in asdict(STEP) if name != "stop_words"}
    assert reason(GopherQuality(**off), "# ...\n- ...") is None
    assert reason(GopherQuality(**off), "") is None


def test_word_length_counts_characters():
    assert reason(STEP, "the " * 49 + "été with") is None
    assert reason(STEP, " ".join(["the", "and", *["ж" * 10] * 90])) is None


def test_share_out_of_range_is_rejected():
    with pytest.raises(UserError, match=r"gopher-quality: max_bullet_line_share \(90\) must be a share from 0 to 1"):
        GopherQuality(max_bullet_line_share=90)


@given(documents=st.lists(st.text(alphabet="the of\n#.-1é字", max_size=40), max_size=8))
def test_result_does_not_depend_on_batch(documents):
    step = GopherQuality(min_words=3, min_stop_words=1)
    together = run(step, *documents)[1].counts
    alone = sum((run(step, text)[1].counts for text in documents), start=type(together)())
    assert together == alone
