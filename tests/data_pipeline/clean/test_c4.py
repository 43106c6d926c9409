import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.c4 import C4Quality
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import reason, texts

STEP = C4Quality()
GOOD = "This is a line of prose."
PAGE = "\n".join([GOOD] * 3)
LINES = C4Quality(min_sentences=0)


def test_defaults_match_paper():
    assert (STEP.min_sentences, STEP.min_words_per_line) == (3, 5)


@pytest.mark.parametrize(
    ("retained", "left_out", "why"),
    [
        (PAGE, "\n".join([GOOD] * 2), "fewer than 3 sentences"),
        ("One. Two. Three sentences stand here.", "One, two, three words. Stand here.", "fewer than 3 sentences"),
        (PAGE, PAGE + "\nfunction() {", "a curly bracket"),
        (PAGE + "\nlorem", PAGE + "\nLorem Ipsum", "lorem ipsum"),
    ],
)
def test_c4_page_rules(retained, left_out, why):
    assert reason(STEP, retained) is None
    assert reason(STEP, left_out) == why


@pytest.mark.parametrize("end", [".", "!", "?", '."', ".\u201d"])
def test_c4_keeps_sentence_lines(end):
    assert texts(LINES, f"five words are just enough{end}") == [f"five words are just enough{end}"]


@pytest.mark.parametrize(
    "line",
    [
        "no sign ends this line of words",
        "this one goes on and on...",
        "four words are few.",
        "Please enable JavaScript to see this page.",
        "Read our Privacy Policy before you go on.",
        "By reading on you agree to our use of cookies.",
        f"here is a word of length {'a' * 1001}.",
    ],
)
def test_c4_removes_lines(line):
    assert texts(LINES, f"{GOOD}\n{line}\n{GOOD}") == [f"{GOOD}\n{GOOD}"]


def test_c4_keeps_longest_allowed_word():
    line = f"here is a word of length {'a' * 999}."
    assert texts(LINES, line) == [line]


@pytest.mark.parametrize("line", ["字" * 1500, "กขค" * 500])
def test_c4_keeps_lines_without_spaces(line):
    assert texts(C4Quality(min_sentences=0, terminal_punctuation=False), line) == [line]


def test_c4_removes_citations():
    assert texts(LINES, "The earth is[1] round[citation needed] and old.[23][edit]") == ["The earth is round and old."]


def test_c4_rules_can_be_disabled():
    step = C4Quality(
        min_sentences=0, min_words_per_line=0, terminal_punctuation=False, remove_citations=False,
        drop_javascript_lines=False, drop_policy_lines=False, drop_lorem_ipsum=False, drop_curly_brackets=False,
    )  # fmt: skip
    text = "{ lorem ipsum [1]\njavascript\nterms of use"
    assert texts(step, text) == [text]


def test_c4_bad_words(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("darn\nbloody hell\n\n坏话\n", encoding="utf-8")
    step = C4Quality(min_sentences=0, bad_words=str(path))
    assert step.input_files() == (str(path),)
    why = "a word of the bad-words list"
    assert reason(step, "Well, DARN it, they all said.") == why
    assert reason(step, "What the bloody hell is that?") == why
    assert reason(step, "他说坏话。") == why
    assert reason(step, "The darned hell is a bloody place, 坏人话。") is None


def test_c4_missing_word_list_is_rejected():
    with pytest.raises(UserError, match=r"c4-quality: bad_words \(nowhere.txt\) cannot be read"):
        reason(C4Quality(bad_words="nowhere.txt"), PAGE)


@given(st.text(alphabet="ab .!\"'[1]\n…"))
def test_c4_is_idempotent(text):
    once = texts(LINES, text)
    assert texts(LINES, *once) == once
