import itertools
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.gopher_repetition import GopherRepetition
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import reason, run
from tests.data_pipeline.unspaced import WORDS, page

STEP = GopherRepetition()
OFF = dict.fromkeys(asdict(STEP))


def only(**rules):
    return GopherRepetition(**{**OFF, **rules})


def fresh(count, length=4):
    """Different words of one length."""
    letters = itertools.product("abcdefghij", repeat=length)
    return ["".join(word) for word in itertools.islice(letters, count)]


@pytest.mark.parametrize("language", WORDS)
def test_repeated_sentences_without_spaces(language):
    """Frequent words are no repetition, although each is as long as an n-gram of letters. A batch may be mixed."""
    fresh_page, repetitive = page(language, *range(20)), page(language, *range(10), *range(10))
    _, dropped = run(STEP, fresh_page, " ".join(fresh(500)), repetitive)
    assert [source for examples in dropped.examples.values() for source, _ in examples] == ["2.txt"]
    assert [*dropped.counts] == ["gopher-repetition: duplicate 5 grams above 15%"]


def test_defaults_match_table_a1():
    assert asdict(STEP) == {
        "duplicate_lines": 0.30,
        "duplicate_paragraphs": 0.30,
        "duplicate_line_characters": 0.20,
        "duplicate_paragraph_characters": 0.20,
        "top_2_gram": 0.20,
        "top_3_gram": 0.18,
        "top_4_gram": 0.16,
        "duplicate_5_grams": 0.15,
        "duplicate_6_grams": 0.14,
        "duplicate_7_grams": 0.13,
        "duplicate_8_grams": 0.12,
        "duplicate_9_grams": 0.11,
        "duplicate_10_grams": 0.10,
    }


def test_text_without_repetition_is_retained():
    assert reason(STEP, " ".join(fresh(500))) is None


@pytest.mark.parametrize(
    ("rule", "retained", "left_out", "why"),
    [
        (
            {"duplicate_lines": 0.3},
            "\n".join([*fresh(7), *["aaaa"] * 3]),
            "\n\n".join([*fresh(6), *["aaaa"] * 3]),
            "duplicate lines above 30%",
        ),
        (
            {"duplicate_line_characters": 0.2},
            "\n".join([*fresh(8), *["aaaa"] * 2]),
            "\n".join([*fresh(7), *["aaaa"] * 2]),
            "duplicate line characters above 20%",
        ),
        (
            {"duplicate_paragraphs": 0.3},
            "\n\n".join([*fresh(7), *["aaaa"] * 3]),
            "\n\n\n".join([*fresh(6), *["aaaa"] * 3]),
            "duplicate paragraphs above 30%",
        ),
        (
            {"duplicate_paragraph_characters": 0.2},
            "\n\n".join([*fresh(8), *["aaaa"] * 2]),
            "\n\n".join([*fresh(7), *["aaaa"] * 2]),
            "duplicate paragraph characters above 20%",
        ),
    ],
)
def test_line_and_paragraph_rule_bounds(rule, retained, left_out, why):
    assert reason(only(**rule), retained) is None
    assert reason(only(**rule), left_out) == why


@pytest.mark.parametrize("end", ["\r\n", " \n", "\t \n", "\r", "\n\x0c\n"])
def test_line_ends_and_blank_lines_are_not_repetition(end):
    """A file with another system's line ends, or with spaces on its blank lines, gets the same result."""
    lines = [" ".join(words) for words in zip(*[iter(fresh(500))] * 10, strict=True)]
    assert reason(STEP, (end + end).join(lines)) is None
    again = [*lines[:6], *lines[:4]]
    assert reason(only(duplicate_lines=0.3), end.join(again)) == "duplicate lines above 30%"
    assert reason(only(duplicate_paragraphs=0.3), (end + end).join(again)) == "duplicate paragraphs above 30%"
    assert reason(only(duplicate_paragraphs=0.3), end.join(again)) is None or "\x0c" in end


@pytest.mark.parametrize(("size", "max_share"), [(2, 0.20), (3, 0.18), (4, 0.16)])
def test_top_ngram_rule_bounds(size, max_share):
    """100 words of equal length: an n-gram of `size` words, repeated `times` times, has the maximum share."""
    times = round(100 * max_share / size)
    retained, left_out = (
        only(**{f"top_{size}_gram": times * size / 100}),
        only(**{f"top_{size}_gram": times * size / 101}),
    )
    words = fresh(100 + times)
    phrase, other_items = words[:size], iter(words[size:])
    text = [word for _ in range(times) for word in (*phrase, next(other_items))]
    text += itertools.islice(other_items, 100 - len(text))
    assert len(text) == 100
    assert reason(retained, " ".join(text)) is None
    assert reason(left_out, " ".join(text)) == f"top {size} gram above {times * size / 101:.0%}"


def test_ngram_that_occurs_once_is_not_counted():
    assert reason(only(top_2_gram=0.2), "only two") is None


@pytest.mark.parametrize(("size", "max_share"), [(5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)])
def test_duplicate_ngram_rule_bounds(size, max_share):
    """A passage of this many words, repeated at the end of 100 words, is the share."""
    again, name = round(100 * max_share), f"duplicate_{size}_grams"
    words = fresh(100 - again)
    text = " ".join(words + words[:again])
    assert reason(only(**{name: max_share}), text) is None
    longer = " ".join(words + words[: again + 1])
    assert reason(only(**{name: max_share}), longer) == f"duplicate {size} grams above {max_share:.0%}"


def test_short_duplicates_are_not_long_duplicates():
    words = fresh(80)
    fives = [word for at in range(0, 50, 5) for word in (*words[at : at + 5], words[50 + at // 5])]
    text = " ".join(words[:50] + fives)
    assert reason(only(duplicate_6_grams=0.0), text) is None
    assert reason(only(duplicate_5_grams=0.15, duplicate_6_grams=0.0), text) == "duplicate 5 grams above 15%"


def covered(words, size):
    """Characters in repeated runs, by the definition."""
    visited, offsets = set(), set()
    for at in range(len(words) - size + 1):
        run_of_words = tuple(words[at : at + size])
        offsets |= set(range(at, at + size)) if run_of_words in visited else set()
        visited.add(run_of_words)
    return sum(len(words[at]) for at in offsets)


def top(words, size):
    counts = Counter(tuple(words[at : at + size]) for at in range(len(words) - size + 1))
    max_share = max(counts.values(), default=0)
    return max((max_share * sum(map(len, gram)) for gram, count in counts.items() if count == max_share > 1), default=0)


@given(
    documents=st.lists(st.lists(st.sampled_from(["a", "bb", "é", "字", "dddd"]), max_size=25), max_size=5),
    size=st.integers(2, 10),
    max_share=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
)
def test_ngram_rules_match_definition(documents, size, max_share):
    name, count = (f"top_{size}_gram", top) if size < 5 else (f"duplicate_{size}_grams", covered)
    retained, _ = run(only(**{name: max_share}), *(" ".join(words) for words in documents))
    expected = [words for words in documents if count(words, size) <= max_share * sum(map(len, words))]
    assert [document.text.split() for document in retained] == expected


def test_share_out_of_range_is_rejected():
    with pytest.raises(UserError, match=r"gopher-repetition: top_2_gram \(20\) must be a share from 0 to 1"):
        GopherRepetition(top_2_gram=20)
