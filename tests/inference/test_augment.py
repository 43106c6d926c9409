"""Sentences made of one: who gives way to whom, how often, and the same each time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from megaptm.errors import UserError
from megaptm.inference.augment import Augmentation, augment
from megaptm.inference.loaded_model import LoadedModel
from tests.inference.test_families import TEXTS, tiny


def near(word: str, number: int) -> Sequence[str]:
    return [f"{word}-{one}" for one in range(number)]


@pytest.fixture(scope="module")
def bert() -> LoadedModel:
    return tiny("bert")


def test_words_give_way_as_often_as_is_said(bert: LoadedModel) -> None:
    """Twelve words that no piece is of, so that none of 200 copies is likely to be another, or the text."""
    words = [f"omega{chr(0x3B1 + number)}" for number in range(12)]  # Greek letters
    made = [one.split() for one in augment(bert, " ".join(words), near, settings=Augmentation(copies=200))]
    assert len(made) > 190
    share = sum(one != word for row in made for one, word in zip(row, words, strict=True)) / (len(made) * len(words))
    assert share == pytest.approx(0.4, abs=0.05)
    for at, word in enumerate(words):
        assert {row[at] for row in made} <= {word, *near(word, 15)}


def test_a_word_of_one_piece_gives_way_to_whole_words_that_the_model_holds_likely(bert: LoadedModel) -> None:
    made = [one.split() for one in augment(bert, "cat xylophonist", settings=Augmentation(copies=300, candidates=3))]
    likely = {row[0] for row in made}
    assert 2 <= len(likely) <= 3
    assert all(word.isalnum() and len(bert.tokenizer.encode(word)) == 1 for word in likely)


def test_none_is_made_twice_and_each_call_makes_the_same(bert: LoadedModel) -> None:
    text = "The cat saw the dog, by the river."
    first = augment(bert, text, near)
    assert first == augment(bert, text, near)
    assert first != augment(bert, text, near, seed=1)
    assert 1 < len({*first}) == len(first) <= 20
    assert text not in first
    assert all(one.startswith("The ") and " the " in one and one.endswith(".") for one in first)


def test_without_vectors_words_of_several_pieces_stay(bert: LoadedModel) -> None:
    assert all(one.startswith("xylophonist ") for one in augment(bert, "xylophonist cat"))
    assert augment(bert, "xylophonist cat", settings=Augmentation(probability=0.0)) == []


def test_a_decoder_is_refused() -> None:
    with pytest.raises(UserError, match="is no masked language model on WordPiece"):
        augment(tiny("gpt2"), TEXTS[0])


@pytest.mark.parametrize("wrong", [{"copies": 0}, {"candidates": -1}, {"probability": 1.5}])
def test_a_setting_that_means_nothing_is_one_sentence(wrong: dict[str, float]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(UserError, match=rf"{name} \({value}\) must be"):
        Augmentation(**wrong)  # type: ignore[arg-type]
