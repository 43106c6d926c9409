"""Repeated paragraphs are cut out of later documents."""

import numpy as np
import pytest

from data_pipeline.deduplicate import (
    Deduplicate,
    NearDuplicateOptions,
    ParagraphOptions,
    cut_paragraphs,
    find_duplicates,
    read_part,
    write_part,
)
from data_pipeline.document import Document
from tests.data_pipeline.deduplicate.corpora import Written, backwards, in_process, real_documents

CUT = Deduplicate(paragraphs=ParagraphOptions(characters=5))


def cut(folder, documents, options=CUT, size=2, run=in_process):
    """(texts by source, the jobs' counts) after cutting."""
    folder.mkdir(exist_ok=True)
    parts = []
    for begin in range(0, len(documents), size):
        stem = str(folder / f"part-{begin}")
        parts.append(Written(stem, write_part(stem, documents[begin : begin + size], options)))
    cuts = cut_paragraphs(parts, options, run, str(folder / "cut"))
    retained = [document for part in cuts for document in read_part(part.stem)]
    assert [part.documents for part in cuts] == [len(list(read_part(part.stem))) for part in cuts]
    return {document.source: document.text for document in retained}, cuts


def documents(*texts, **fields):
    return [Document(text, str(number), **fields) for number, text in enumerate(texts)]


def test_first_of_equal_paragraphs_is_retained(tmp_path):
    texts, cuts = cut(
        tmp_path,
        documents(
            "first one\n\nsecond one\n\nthird one",
            "before it\n\nsecond one\n\nafter it",
            "third one\n\nlast one",
            "new text\n\nfirst one",
        ),
    )
    assert texts == {
        "0": "first one\n\nsecond one\n\nthird one",
        "1": "before it\n\nafter it",
        "2": "last one",
        "3": "new text",
    }
    assert sum(part.paragraphs for part in cuts) == 3
    assert sum(part.characters for part in cuts) == 3 * len("\n\n") + len("second onethird onefirst one")


def test_repetition_within_document_is_removed(tmp_path):
    assert cut(tmp_path, documents("once more\n\nother text\n\nonce more\n\nend of it"))[0] == {
        "0": "once more\n\nother text\n\nend of it"
    }


def test_document_left_empty_is_dropped(tmp_path):
    texts, cuts = cut(tmp_path, documents("one of them\n\ntwo of them", "two of them\n\none of them", "two of them"))
    assert list(texts) == ["0"]
    dropped = cuts[0].dropped
    dropped.merge(cuts[1].dropped)
    assert dropped.counts == {"only repeated paragraphs": 2}
    assert dropped.examples["only repeated paragraphs"][0] == ("1", "two of them\n\none of them")


def test_equal_document_is_dropped_completely(tmp_path):
    texts, cuts = cut(tmp_path, documents("long enough\n\nhm", "long enough\n\nhm"))
    assert list(texts) == ["0"]
    assert cuts[0].dropped.counts == {"duplicate": 1}
    assert cuts[0].paragraphs == 0


def test_short_paragraphs_are_retained(tmp_path):
    assert cut(tmp_path, documents("hm\n\nfirst text", "hm\n\nsecond text"))[0]["1"] == "hm\n\nsecond text"


def test_surrounding_white_space_is_ignored(tmp_path):
    texts, _ = cut(
        tmp_path, documents("the same text\n \n\nand more", "and more text\n\n  the same text  \n\nend of it")
    )
    assert texts["1"] == "and more text\n\n  end of it"


def test_lines_as_paragraphs(tmp_path):
    options = Deduplicate(paragraphs=ParagraphOptions(between="lines", characters=5))
    texts, _ = cut(tmp_path, documents("menu line\nfirst text", "menu line\nsecond text"), options)
    assert texts == {"0": "menu line\nfirst text", "1": "second text"}


def test_code_is_unchanged_by_default(tmp_path):
    code = documents("import this\n\nimport that", "import that\n\nimport other", form="code")
    assert cut(tmp_path / "left", code)[0]["1"] == "import that\n\nimport other"
    requested = Deduplicate(paragraphs=ParagraphOptions(characters=5, code=True))
    assert cut(tmp_path / "asked", code, requested)[0]["1"] == "import other"


def test_dialogue_is_unchanged(tmp_path):
    turns = {"turns": [[0, "user"], [11, "model"]]}
    texts, _ = cut(tmp_path, documents("good morning\n\nto you too", "good morning\n\nwell then", notes=turns))
    assert texts["1"] == "good morning\n\nwell then"


def test_notes_and_form_are_retained(tmp_path):
    written = [Document("a paragraph\n\none", "0"), Document("a paragraph\n\ntwo", "1", "prose", {"url": "x:y"})]
    _, cuts = cut(tmp_path, written)
    assert list(read_part(cuts[0].stem))[1] == Document("two", "1", "prose", {"url": "x:y"})


@pytest.mark.parametrize("size", [1, 3, 50])
def test_result_does_not_depend_on_parts_and_jobs(tmp_path, monkeypatch, size):
    rng = np.random.default_rng(0)
    paragraphs = [paragraph for document in real_documents()[:5] for paragraph in document]
    mixed = documents(*("\n\n".join(rng.choice(paragraphs, 6)) for _ in range(50)))
    options = Deduplicate(paragraphs=ParagraphOptions())
    uncut, _ = cut(tmp_path / "whole", mixed, options, size=1000)
    monkeypatch.setattr("data_pipeline.deduplicate.buckets.ENTRIES_PER_JOB", 10)
    assert cut(tmp_path / "parts", mixed, options, size=size, run=backwards)[0] == uncut
    long = [paragraph for text in uncut.values() for paragraph in text.split("\n\n") if len(paragraph) >= 80]
    assert len(long) == len(set(long)) > 30


def test_near_duplicates_of_remaining_text(tmp_path):
    shared = "this paragraph is in every one of the documents and it is as long as it has to be to be cut out of them"
    texts = [f"{shared}\n\nhm", "some other words here", f"{shared}\n\nSome other words here!"]
    options = Deduplicate(paragraphs=ParagraphOptions(), near=NearDuplicateOptions())
    first, cuts = cut(tmp_path, documents(*texts), options, size=1)
    assert first["2"] == "Some other words here!"
    assert find_duplicates(cuts, options, in_process, str(tmp_path / "found")).reasons.tolist() == [0, 0, 2]
