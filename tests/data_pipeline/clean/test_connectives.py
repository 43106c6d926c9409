"""Clauses joined by a connective, from plain text to the question of which connective it was."""

from __future__ import annotations

import pytest

from data_pipeline.clean import run_steps
from data_pipeline.clean.connectives import SHIPPED, PairByConnective
from data_pipeline.corpus.build import build_corpus
from data_pipeline.document import Document, DropCounts
from data_pipeline.recipe import read_recipe
from megaptm.data import Corpus, open_mix
from megaptm.errors import UserError
from megaptm.tokenizers import load_tokenizer

ENGLISH = """The weather

However, nobody came. The rain fell all day long. In  contrast, the south was dry, so farmers lost much.
He, however, left. Because it was late, they slept. They all went home; because it had grown late.
Buttons are nice things. Button up!

Still waters run deep. Still, nobody is afraid of them."""
CHINESE = (
    "他昨天没有来。但是他今天来得非常早。天气很冷，因此大家都没有出门。然而，春天快要到来了！最后一次见面是在北京。"  # noqa: RUF001
)


def pairs(text: str, step: PairByConnective | None = None, **notes: object) -> list[tuple[str, ...]]:
    """Label and parts of each document that the step makes."""
    made = run_steps([step or PairByConnective()], [Document(text, "a", notes=notes)], DropCounts())
    return [(document.notes["label"], *document.text.split("\n")) for document in made]


def test_clauses_are_paired_without_connective() -> None:
    assert pairs(ENGLISH) == [
        ("in contrast", "The rain fell all day long.", "the south was dry, so farmers lost much."),
        ("so", "In  contrast, the south was dry", "farmers lost much."),
        ("because", "They all went home", "it had grown late."),
        ("still", "Still waters run deep.", "nobody is afraid of them."),
    ]
    assert pairs(CHINESE) == [
        ("但是", "他昨天没有来。", "他今天来得非常早。"),
        ("因此", "天气很冷", "大家都没有出门。"),
        ("然而", "天气很冷，因此大家都没有出门。", "春天快要到来了！"),  # noqa: RUF001
    ]


def test_long_sentence_is_not_divided() -> None:
    """Each clause makes a document of the length of the sentence: together, the square of it."""
    assert len(pairs("we walked home, but " * 40)) == 39
    assert pairs("we walked home, but " * 60) == []


def test_connectives_match_any_case() -> None:
    for written in ("BECAUSE", "becauſe", "Becauſe"):  # noqa: RUF001
        assert pairs(f"We walked home, {written} the rain fell.") == [("because", "We walked home", "the rain fell.")]


def test_pair_keeps_notes_and_offset() -> None:
    document = Document("It was cold there. But we went out.", "a.txt", notes={"url": "x", "turns": [[0, "user"]]})
    dropped = DropCounts()
    [made] = run_steps([PairByConnective()], [document, Document("Nothing here.", "b.txt")], dropped)
    assert made.source == "a.txt@19"
    assert made.notes == {"url": "x", "label": "but", "parts": [0, 19]}
    assert made.text[19:] == "we went out."
    assert dropped.counts == {"pair-by-connective: no connective": 1}


@pytest.mark.parametrize("line", [line for line in SHIPPED.read_text().splitlines() if not line.startswith("#")])
def test_shipped_connectives_match(line: str) -> None:
    label, _, written = line.rpartition("\t")
    text = f"This stood before it{written} this stood behind it."
    if written[0] not in ",，":  # noqa: RUF001
        text = f"This stood before it. {written.capitalize()} this stood behind it."
    label = label or written.strip(",，")  # noqa: RUF001
    assert [(result, second) for result, _, second in pairs(text)] == [(label, "this stood behind it.")]


def test_user_connectives_replace_shipped(tmp_path) -> None:
    (tmp_path / "mine.tsv").write_text("# mine\nagainst\tbut\nagainst\thowever,\nwhy\t, for\n", encoding="utf-8")
    step = PairByConnective(connectives=str(tmp_path / "mine.tsv"), min_bytes=1)
    assert step.labels() == ("against", "why")
    assert step.input_files() == (str(tmp_path / "mine.tsv"),)
    assert pairs("One. But two. However, three, for four. For five. So six.", step) == [
        ("against", "One.", "two."),
        ("against", "But two.", "three, for four."),
        ("why", "However, three", "four."),
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (None, "cannot be read"),
        ("# none\n", "has no words: add one per line"),
        ("contrast\t,\n", "has a line without a connective"),
        ("a\tbut\nb\tBut,\n", "gives `but` a second label: remove one"),
    ],
)
def test_invalid_connective_file_is_rejected(tmp_path, written, message) -> None:
    if written is not None:
        (tmp_path / "mine.tsv").write_text(written, encoding="utf-8")
    with pytest.raises(UserError, match=rf"pair-by-connective: connectives: \S*mine\.tsv {message}"):
        PairByConnective(connectives=str(tmp_path / "mine.tsv"))
    with pytest.raises(UserError, match=r"min_bytes \(0\) must be 1 or more"):
        PairByConnective(min_bytes=0)


def test_connective_is_label_and_not_in_tokens(tmp_path) -> None:
    """From plain text by a recipe; the step sets the labels."""
    message = {"but": "it failed", "therefore,": "it passed", "for example,": "one did"}
    text = [
        f"The trial number {number} ended. {word.capitalize()} {message[word]} as told in {number}."
        for number in range(90)
        for word in [[*message][number % 3]]
    ]
    (tmp_path / "a.txt").write_text("\n".join(text), encoding="utf-8")
    source = f"sources=[{{path: {tmp_path}/a.txt, documents: line}}]"
    recipe = read_recipe([], [source, "steps=[pair-by-connective]", "tokenizer.kind=wordpiece", "validation=0.1"])
    build_corpus(recipe, tmp_path / "corpus", workers=0)
    corpus = Corpus.open(tmp_path / "corpus")
    labels = corpus.manifest.made_from["tables"]["labels"]
    assert tuple(labels) == PairByConnective().labels()
    tokenizer = load_tokenizer(tmp_path / "corpus/tokenizer")
    mix = open_mix(
        {str(tmp_path / "corpus"): 1.0},
        objective={"relations": {"task": "discourse"}},
        sequence=32,
        seed=0,
        special=tokenizer.special,
    )
    answers = set()
    for number in range(mix.orders[0].per_epoch):
        sample = mix.sample(number)
        first, second = (
            tokenizer.decode(sample["tokens"][(sample["segments"] == side) & (sample["document_ids"] > 0)])
            for side in (0, 1)
        )
        assert "trial" in first
        label = labels[int(sample["discourse"])]
        answers.add(label)
        assert message[next(word for word in message if word.startswith(label))] in second
        assert not any(word.strip(",") in f"{first} {second}" for word in message)
    assert answers == {"but", "therefore", "for example"}


def test_sources_with_parts_are_rejected(tmp_path) -> None:
    source = f"sources=[{{path: {tmp_path}/a.jsonl, parts: [a, b]}}]"
    with pytest.raises(
        UserError, match="step pair-by-connective makes parts of plain text, but the sources have parts already"
    ):
        read_recipe([], [source, "steps=[pair-by-connective]"])
