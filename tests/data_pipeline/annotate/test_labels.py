"""Labelled pairs of texts: from records to a question about them (ERNIE 2.0)."""

import json
import random

import pytest

from data_pipeline.annotate import Annotations
from data_pipeline.clean.connectives import PairByConnective
from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from megaptm.batch import IGNORED
from megaptm.data import Corpus, open_mix
from megaptm.errors import UserError
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.tokenizers import load_tokenizer

LABELS = ("clicked", "shown", "random")
OPTIONS = {"sequence": 32, "seed": 0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Records whose second text gives their label; one has an invalid label."""
    folder, rng = tmp_path_factory.mktemp("pairs"), random.Random(0)
    words = ["span", "of", "a", "word", "is", "long"]
    records = []
    for number in range(60):
        label = rng.choice(LABELS)
        # A few are longer than a row.
        query = " ".join(rng.choices(words, k=40 if number % 20 == 0 else 4))
        records.append({"query": query, "title": f"{label} it is, said {number}", "label": label})
    records.append({"query": "a word is long", "title": "it is a span of a word", "label": "bought"})
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    recipe = Recipe(
        sources=(Source(path=str(folder / "a.jsonl"), parts=("query", "title"), keep=("label",)),),
        annotate=Annotations(labels=LABELS),
        tokenizer=TokenizerRecipe(kind="wordpiece", vocabulary=80),
        validation=0.1,
    )
    report = build_corpus(recipe, folder / "corpus", workers=0)
    return folder / "corpus", report


def test_pair_has_its_label(corpus):
    folder, _ = corpus
    assert Corpus.open(folder).manifest.made_from["tables"]["labels"] == [*LABELS]
    tokenizer = load_tokenizer(folder / "tokenizer")
    mix = open_mix(
        {str(folder): 1.0}, objective={"titles": {"task": "relevance"}}, special=tokenizer.special, **OPTIONS
    )
    visited = set()
    for number in range(mix.orders[0].per_epoch):
        sample = mix.sample(number)
        visited.add(answer := int(sample["relevance"]))
        title = tokenizer.decode(sample["tokens"][(sample["segments"] == 1)])
        if answer != IGNORED:  # a span of a pair that is longer than a row
            assert LABELS[answer] in title
    assert visited >= {0, 1, 2}


def test_labels_are_shared_by_questions(corpus):
    folder, _ = corpus
    special = load_tokenizer(folder / "tokenizer").special
    mix = open_mix({str(folder): 1.0}, objective={"masked-lm": {}, "discourse": {}}, special=special, **OPTIONS)
    assert {int(mix.sample(number)["discourse"]) for number in range(40)} >= {0, 1, 2}
    with pytest.raises(UserError, match=r"was built without words, which the objective needs"):
        open_mix(
            {str(folder): 1.0},
            objective={"masked-lm": {"hide": "whole-words"}, "discourse": {}},
            special=special,
            **OPTIONS,
        )


def test_question_with_fewer_classes_is_rejected(corpus, monkeypatch):
    folder, _ = corpus
    monkeypatch.setattr("megaptm.objectives.questions.TextQuestion.num_labels", 2)
    with pytest.raises(UserError, match=r"has 3 labels, more than the 2 classes of question relevance"):
        open_mix(
            {str(folder): 1.0},
            objective={"titles": {"task": "relevance"}},
            special=load_tokenizer(folder / "tokenizer").special,
            **OPTIONS,
        )


def test_document_with_unknown_label_is_dropped(corpus):
    folder, report = corpus
    (reason,) = report.dropped
    assert report.dropped[reason] == 1
    assert "the label 'bought' is not one of clicked, shown, random" in report.messages[reason]
    assert sum(split.samples for split in Corpus.open(folder).manifest.splits.values()) == 60
    with pytest.raises(UserError, match=r"annotate\.labels \(a, a\) contains a label twice"):
        Annotations(labels=("a", "a"))


def test_shipped_connectives_fit_the_discourse_question() -> None:
    labels = PairByConnective().labels()
    assert len(labels) == 148 <= QUESTIONS["discourse"].num_classes
    assert {"however", "because", "但是", "因为"} <= {*labels}
