import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean import CLEAN, STEPS, run_steps, with_text
from data_pipeline.clean.step import BATCH_CHARACTERS, BATCH_DOCUMENTS, batches, inputs_of
from data_pipeline.document import Document, Dropped
from data_pipeline.recipe import read_recipe
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import run

TURNS = [[0, "user"], [5, "assistant"]]
REQUIRED = {"keep-if": {"call": "os.path:exists"}, "decontaminate": {"against": ("evaluation.txt",)}}


@pytest.mark.parametrize("name", STEPS)
def test_steps_travel_to_workers(name):
    step = STEPS[name](**REQUIRED.get(name, {}))
    assert pickle.loads(pickle.dumps(step)) == step


@pytest.mark.parametrize("name", [name for name in STEPS if name not in REQUIRED])
def test_steps_take_no_documents_and_empty_ones(name):
    step = STEPS[name]()
    assert list(step([], Dropped())) == []
    dropped = Dropped()
    kept = list(step([Document("", "empty.txt"), Document(" \n\n", "blank.txt")], dropped))
    assert len(kept) + sum(dropped.counts.values()) == 2


def test_the_default_steps_have_names():
    assert all(type(step) in STEPS.values() for step in CLEAN)


def test_a_text_that_stays_keeps_its_document():
    document = Document("hello world", "talk", notes={"turns": TURNS})
    assert with_text(document, "hello world") is document


def test_places_in_a_text_are_kept_where_only_its_end_changes():
    document = Document("hello world", "talk", notes={"turns": TURNS, "language": "en"})
    assert with_text(document, "hello world\n").notes == {"turns": TURNS, "language": "en"}
    assert with_text(document, "hell").notes == {"turns": TURNS[:1], "language": "en"}


def test_places_in_a_text_are_dropped_where_it_changes_before_its_end():
    document = Document("hello world", "talk", notes={"turns": TURNS, "language": "en"})
    assert with_text(document, "Hello world", seen=True).notes == {"language": "en", "seen": True}


@given(sizes=st.lists(st.integers(0, BATCH_CHARACTERS), max_size=20))
def test_batches_hold_every_document_in_order(sizes):
    documents = [Document("a" * size, str(number)) for number, size in enumerate(sizes)]
    found = list(batches(documents))
    assert [document for batch in found for document in batch] == documents
    assert all(sum(len(document.text) for document in batch[:-1]) < BATCH_CHARACTERS for batch in found)


def test_batches_hold_few_documents():
    assert [len(batch) for batch in batches([Document("", "")] * (BATCH_DOCUMENTS + 1))] == [BATCH_DOCUMENTS, 1]


class Picky:
    """Fails on some documents."""

    def __init__(self, error: Exception):
        self.error = error

    def __call__(self, documents, dropped):
        for batch in batches(documents):
            for document in batch:
                if "bad" in document.text:
                    raise self.error
                if "drop" in document.text:
                    dropped.add("dropped", document.source, document.text)
                else:
                    yield document


DOCUMENTS = [Document(text, f"{number}.txt") for number, text in enumerate(["one", "bad", "drop", "bad too", "two"])]


@pytest.mark.parametrize("error", [ValueError("no"), RecursionError("deep"), OSError("odd"), UnicodeError("half")])
def test_a_document_on_which_a_step_fails_costs_itself_alone(error):
    dropped = Dropped()
    kept = list(run_steps([Picky(error), CLEAN[0]], DOCUMENTS, dropped, "skip"))
    assert [document.text for document in kept] == ["one", "two"]
    assert dropped.counts == {"picky failed": 2, "dropped": 1}
    assert dropped.examples["picky failed"] == [("1.txt", "bad"), ("3.txt", "bad too")]
    assert dropped.said == {"picky failed": f"{type(error).__name__}: {error}"}


def test_it_ends_the_build_in_a_sentence_where_that_was_asked_for():
    with pytest.raises(UserError, match=r"^picky failed on document 1\.txt \(ValueError: no\): mend it, or leave "):
        list(run_steps([Picky(ValueError("no"))], DOCUMENTS, Dropped(), "fail"))


@pytest.mark.parametrize("error", [UserError("the recipe is wrong"), OSError(5, "Input/output error")])
def test_mistakes_in_the_recipe_and_disks_that_give_up_are_no_documents(error):
    with pytest.raises(type(error)):
        list(run_steps([Picky(error)], DOCUMENTS, Dropped(), "skip"))


MINE = """
from dataclasses import dataclass

from data_pipeline.clean.step import Filter


@dataclass(frozen=True)
class DropLinks(Filter):
    most: int = 20

    def reason(self, document):
        return "too many links" if document.text.count("http") > self.most else None


class Plain:
    pass


@dataclass(frozen=True)
class Unfinished(Filter):
    pass


NUMBER = 3
"""


@pytest.fixture
def steps_of_mine(tmp_path, monkeypatch):
    (tmp_path / "steps_of_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "steps_of_mine.py"
    sys.modules.pop("steps_of_mine", None)


def test_a_recipe_may_name_a_step_of_the_user(steps_of_mine):
    Path("mine.yaml").write_text("sources: [a]\nsteps: [normalize, steps_of_mine:DropLinks: {most: 1}]\n")
    recipe = read_recipe(["mine.yaml"])
    step = recipe.steps[1]
    kept, dropped = run(step, "http http", "one http")
    assert [document.text for document in kept] == ["one http"]
    assert dropped.counts == {"too many links": 1}
    # It is written down so that the same can be read again, and a change of its file begins the work anew.
    assert recipe.plain()["steps"][1] == {"steps_of_mine:DropLinks": {"most": 1}}
    assert inputs_of(step) == (str(steps_of_mine),)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("steps_of_mine:Plain", "step steps_of_mine:Plain is not a dataclass that takes documents"),
        ("steps_of_mine:Unfinished", "step steps_of_mine:Unfinished has no method `reason`: write it"),
        ("steps_of_mine:NUMBER", "is not a dataclass that takes documents"),
        ("steps_of_mine:Gone", "module `steps_of_mine` has no step `Gone`"),
        ("nowhere:Step", "module `nowhere` cannot be imported"),
        ("steps_of_mine:DropLinks: {mots: 3}", "unknown setting mots; did you mean most"),
    ],
)
def test_a_step_that_is_none_is_told(steps_of_mine, written, said):
    Path("mine.yaml").write_text(f"sources: [a]\nsteps: [{written}]\n")
    with pytest.raises(UserError, match=said):
        read_recipe(["mine.yaml"])
