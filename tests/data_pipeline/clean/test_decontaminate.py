import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.decontaminate import Decontaminate
from data_pipeline.clean.known import Known
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import reason, run

WORDS = [f"word{number}" for number in range(100)]
QUESTION = " ".join(WORDS[:20])
WHY = "contains evaluation text"


@pytest.fixture
def evaluation(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(f"{QUESTION}\ntoo short to count\n\nEight words are enough to be looked for.\n")
    return str(path)


def test_a_shared_run_of_thirteen_words_is_found_in_any_case_and_punctuation(evaluation):
    step = Decontaminate(against=(evaluation,))
    assert reason(step, "Before: " + ", ".join(WORDS[3:16]).upper() + "! After.") == WHY
    assert reason(step, " ".join(WORDS[3:15])) is None
    assert reason(step, " ".join(WORDS[3:15]) + " another " + " ".join(WORDS[15:27])) is None


def test_a_short_evaluation_text_is_found_whole(evaluation):
    step = Decontaminate(against=(evaluation,))
    assert reason(step, "say, eight words are enough to be looked for here") == WHY
    assert reason(step, "eight words are enough to be looked at") is None
    assert reason(step, "it is too short to count, this") is None


def test_runs_do_not_go_from_one_document_into_the_next(evaluation):
    kept, dropped = run(Decontaminate(against=(evaluation,)), " ".join(WORDS[:10]), " ".join(WORDS[10:20]), QUESTION)
    assert len(kept) == 2
    assert dropped.examples == {f"decontaminate: {WHY}": [("2.txt", QUESTION[:200])]}


def test_fields_of_json_lines(tmp_path):
    path = tmp_path / "tasks.jsonl"
    rows = [{"question": " ".join(WORDS[:13]), "answer": " ".join(WORDS[20:33])}, {"question": "short", "id": 3}]
    path.write_text("\n".join(map(json.dumps, rows)))
    step = Decontaminate(against=(str(tmp_path / "*.jsonl"),), fields=("question", "answer"))
    assert step.inputs() == (str(path),)
    assert reason(step, " ".join(WORDS[:13])) == reason(step, " ".join(WORDS[20:33])) == WHY


def test_a_whole_file_may_be_one_text(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text("\n".join([" ".join(WORDS[:7]), " ".join(WORDS[7:14])]))
    assert reason(Decontaminate(against=(str(path),), texts="file"), " ".join(WORDS[:14])) == WHY


def test_cutting_keeps_what_is_far_from_the_shared_run(evaluation):
    step = Decontaminate(against=(evaluation,), cut=True, around=10, least_piece=20)
    before, after = "é" * 40 + " ", " " + "b" * 50
    kept, dropped = run(step, before + QUESTION + after, notes={"url": "here"})
    assert [(document.text, document.source) for document in kept] == [
        ("é" * 31, "0.txt@0"),
        ("b" * 41, f"0.txt@{len(before + QUESTION) + 10}"),
    ]
    assert not dropped.counts
    kept, dropped = run(step, QUESTION, "short " + QUESTION)
    assert not kept
    assert dropped.counts == {f"decontaminate: {WHY}": 2}


def test_a_document_that_falls_into_many_pieces_is_left_out(evaluation):
    step = Decontaminate(against=(evaluation,), cut=True, around=0, least_piece=0, most_pieces=2)
    between = " and so on "
    assert len(run(step, between.join([QUESTION] * 3)[: -len(QUESTION)])[0]) == 2
    assert reason(step, between.join([QUESTION] * 4)) == f"{WHY} in more than 2 places"


@given(known=st.sets(st.integers(0, 2**64 - 1)), asked=st.lists(st.integers(0, 2**64 - 1)))
def test_known_hashes_are_found_where_they_are(known, asked):
    asked = asked + list(known)
    found = Known(np.array(sorted(known), np.uint64)).places(np.array(asked, np.uint64))
    assert found.tolist() == [place for place, value in enumerate(asked) if value in known]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"against": ("nowhere.txt",)}, r"against \(nowhere.txt\) is no file: correct the path"),
        ({"against": ()}, "against is empty"),
        ({"against": ("a",), "ngram": 7}, r"ngram \(7\) must be 8 words or more"),
        ({"against": ("a",), "texts": "words"}, r"texts \(words\) must be `line` or `file`"),
    ],
)
def test_wrong_options_are_told(options, told):
    with pytest.raises(UserError, match=told):
        run(Decontaminate(**options), "text")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("short.txt", "a few words\n", "have no text of 8 words or more"),
        ("bad.jsonl", "{\n", r"bad.jsonl:1 is no JSON"),
        ("other.jsonl", '\n{"question": "x"}\n', r"other.jsonl:2 has no text in `text`: set `fields`"),
    ],
)
def test_wrong_lists_are_told(tmp_path, name, content, told):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=told):
        run(Decontaminate(against=(str(tmp_path / name),)), "text")


def test_a_changed_list_is_read_again(evaluation):
    step = Decontaminate(against=(evaluation,))
    assert reason(step, QUESTION) == WHY
    with open(evaluation, "w") as file:
        file.write("another text of as many as eight words\n")
    assert reason(step, QUESTION) is None
