"""Sentences made of one: who gives way to whom, how often, and the same each time."""

from __future__ import annotations

import re
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


def parts_of(text: str) -> list[str]:
    """Its words."""
    return re.findall(r"\w[\w-]*", text)


def test_words_give_way_as_often_as_is_said_to_candidates_alone(bert: LoadedModel) -> None:
    text = "kept cat xylophonist by queen zugzwang"
    words, settings = parts_of(text), Augmentation(copies=400, candidates=3)
    made = [parts_of(one) for one in augment(bert, text, near, settings=settings)]
    seen = {at: {one[at] for one in made} - {words[at]} for at in range(len(words))}
    assert seen[3] == set(), "a function word stays"
    for at in (0, 1, 4):
        assert 1 <= len(seen[at]) <= 3
        assert not any(other.startswith(("##", "[")) for other in seen[at])
    assert [seen[at] for at in (2, 5)] == [{*near(words[at], 3)} for at in (2, 5)]
    share = sum(one[at] != words[at] for one in made for at in (2, 5)) / (2 * len(made))
    assert share == pytest.approx(0.4, abs=0.1)


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
