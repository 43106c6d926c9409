import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean import CLEAN, STEPS, run_steps, with_text
from data_pipeline.clean.step import BATCH_CHARACTERS, BATCH_DOCUMENTS, document_batches, step_input_files
from data_pipeline.document import Document, DropCounts
from data_pipeline.recipe import read_recipe
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import run

TURNS = [[0, "user"], [5, "assistant"]]
REQUIRED: dict[str, dict] = {
    "keep-if": {"call": "os.path:exists"},
    "decontaminate": {"against": ("evaluation.txt",)},
    "score-quality": {"model": "web.quality"},
    "tag-lists": {"lists": {"en": "toxic.txt"}},
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_can_be_pickled(name):
    step = STEPS[name](**REQUIRED.get(name, {}))
    assert pickle.loads(pickle.dumps(step)) == step


@pytest.mark.parametrize("name", [name for name in STEPS if name not in REQUIRED])
def test_steps_accept_empty_documents(name):
    step = STEPS[name]()
    assert list(step([], DropCounts())) == []
    dropped = DropCounts()
    retained = list(step([Document("", "empty.txt"), Document(" \n\n", "blank.txt")], dropped))
    assert len(retained) + sum(dropped.counts.values()) == 2


def test_default_steps_are_registered():
    assert all(type(step) in STEPS.values() for step in CLEAN)


def test_unchanged_text_returns_same_document():
    document = Document("hello world", "talk", notes={"turns": TURNS})
    assert with_text(document, "hello world") is document


def test_turns_are_retained_if_end_changes():
    document = Document("hello world", "talk", notes={"turns": TURNS, "language": "en"})
    assert with_text(document, "hello world\n").notes == {"turns": TURNS, "language": "en"}
    assert with_text(document, "hell").notes == {"turns": TURNS[:1], "language": "en"}


def test_turns_are_removed_if_text_changes():
    document = Document("hello world", "talk", notes={"turns": TURNS, "language": "en"})
    assert with_text(document, "Hello world", seen=True).notes == {"language": "en", "seen": True}


@given(sizes=st.lists(st.integers(0, BATCH_CHARACTERS), max_size=20))
def test_batches_keep_order_and_size_limit(sizes):
    documents = [Document("a" * size, str(number)) for number, size in enumerate(sizes)]
    result = list(document_batches(documents))
    assert [document for batch in result for document in batch] == documents
    assert all(sum(len(document.text) for document in batch[:-1]) < BATCH_CHARACTERS for batch in result)


def test_batches_limit_documents():
    assert [len(batch) for batch in document_batches([Document("", "")] * (BATCH_DOCUMENTS + 1))] == [
        BATCH_DOCUMENTS,
        1,
    ]


class Picky:
    """Fails on some documents."""

    def __init__(self, error: Exception):
        self.error = error

    def __call__(self, documents, dropped):
        for batch in document_batches(documents):
            for document in batch:
                if "bad" in document.text:
                    raise self.error
                if "drop" in document.text:
                    dropped.add("dropped", document.source, document.text)
                else:
                    yield document


DOCUMENTS = [Document(text, f"{number}.txt") for number, text in enumerate(["one", "bad", "drop", "bad too", "two"])]


@pytest.mark.parametrize("error", [ValueError("no"), RecursionError("deep"), OSError("odd"), UnicodeError("half")])
def test_failing_step_drops_single_document(error):
    dropped = DropCounts()
    retained = list(run_steps([Picky(error), CLEAN[0]], DOCUMENTS, dropped, "skip"))
    assert [document.text for document in retained] == ["one", "two"]
    assert dropped.counts == {"picky failed": 2, "dropped": 1}
    assert dropped.examples["picky failed"] == [("1.txt", "bad"), ("3.txt", "bad too")]
    assert dropped.messages == {"picky failed": f"{type(error).__name__}: {error}"}


def test_failing_step_ends_build_with_on_error_fail():
    with pytest.raises(UserError, match=r"^picky failed on document 1\.txt \(ValueError: no\): correct it, or skip "):
        list(run_steps([Picky(ValueError("no"))], DOCUMENTS, DropCounts(), "fail"))


@pytest.mark.parametrize("error", [UserError("the recipe is wrong"), OSError(5, "Input/output error")])
def test_recipe_and_disk_errors_end_build(error):
    with pytest.raises(type(error)):
        list(run_steps([Picky(error)], DOCUMENTS, DropCounts(), "skip"))


@pytest.mark.parametrize(
    ("number", "sources"), [(1, r"0\.txt"), (len(DOCUMENTS), r"0\.txt to 4\.txt")], ids=["one", "batch"]
)
def test_step_without_memory_ends_build(number, sources):
    """The corpus must not depend on the memory of the machine."""
    documents = [replace(document, text="bad") for document in DOCUMENTS[:number]]
    with pytest.raises(UserError, match=rf"^there is not enough memory to run picky on {sources}: use a machine with "):
        list(run_steps([Picky(MemoryError())], documents, DropCounts(), "skip"))


USER_STEPS = """
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
def user_steps(tmp_path, monkeypatch):
    (tmp_path / "user_steps.py").write_text(USER_STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "user_steps.py"
    sys.modules.pop("user_steps", None)


def test_recipe_with_user_step(user_steps):
    Path("mine.yaml").write_text("sources: [a]\nsteps: [normalize, user_steps:DropLinks: {most: 1}]\n")
    recipe = read_recipe(["mine.yaml"])
    step = recipe.steps[1]
    retained, dropped = run(step, "http http", "one http")
    assert [document.text for document in retained] == ["one http"]
    assert dropped.counts == {"too many links": 1}
    # The record of the build names the file, so that it can be read again, and a change of it starts the work anew.
    assert recipe.for_manifest()["steps"][1] == {"user_steps:DropLinks": {"most": 1}}
    assert step_input_files(step) == (str(user_steps),)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("user_steps:Plain", "step user_steps:Plain is not a dataclass that is called with documents"),
        ("user_steps:Unfinished", "step user_steps:Unfinished has no method `reason`: write it"),
        ("user_steps:NUMBER", "is not a dataclass that is called with documents"),
        ("user_steps:Gone", "module `user_steps` has no step `Gone`"),
        ("nowhere:Step", "module `nowhere` cannot be imported"),
        ("user_steps:DropLinks: {mots: 3}", "unknown setting mots; did you mean most"),
    ],
)
def test_invalid_user_step_is_rejected(user_steps, written, message):
    Path("mine.yaml").write_text(f"sources: [a]\nsteps: [{written}]\n")
    with pytest.raises(UserError, match=message):
        read_recipe(["mine.yaml"])
