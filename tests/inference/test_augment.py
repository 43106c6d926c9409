"""Augmentation replaces the expected words at the expected rate, deterministically."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from megaptm.distillation.augment import Augmentation, augment
from megaptm.errors import UserError
from megaptm.inference.loaded_model import LoadedModel
from tests.inference.test_families import TEXTS, tiny


def near(word: str, number: int) -> Sequence[str]:
    return [f"{word}-{index}" for index in range(number)]


@pytest.fixture(scope="module")
def bert() -> LoadedModel:
    return tiny("bert")


def test_replacement_rate_matches_probability(bert: LoadedModel) -> None:
    """Twelve replaceable words, so that 200 copies are likely to differ from each other and from the text."""
    words = [f"omega{chr(0x3B1 + number)}" for number in range(12)]  # Greek letters
    copies = [copy.split() for copy in augment(bert, " ".join(words), near, settings=Augmentation(copies=200))]
    assert len(copies) > 190
    replaced = [new != word for copy in copies for new, word in zip(copy, words, strict=True)]
    assert sum(replaced) / len(replaced) == pytest.approx(0.4, abs=0.05)
    for word, versions in zip(words, zip(*copies, strict=True), strict=True):
        assert {*versions} <= {word, *near(word, 15)}


def test_single_token_words_get_model_predictions(bert: LoadedModel) -> None:
    copies = augment(bert, "cat xylophonist", settings=Augmentation(copies=300, candidates=3))
    likely = {copy.split()[0] for copy in copies}
    assert 2 <= len(likely) <= 3
    assert all(word.isalnum() and len(bert.tokenizer.encode(word)) == 1 for word in likely)


def test_augmentation_is_deterministic_without_duplicates(bert: LoadedModel) -> None:
    text = "The cat saw the dog, by the river."
    first = augment(bert, text, near)
    assert first == augment(bert, text, near)
    assert first != augment(bert, text, near, seed=1)
    assert 1 < len({*first}) == len(first) <= 20
    assert text not in first
    assert all(copy.startswith("The ") and " the " in copy and copy.endswith(".") for copy in first)


def test_words_of_several_subwords_need_vectors(bert: LoadedModel) -> None:
    assert all(copy.startswith("xylophonist ") for copy in augment(bert, "xylophonist cat"))
    assert augment(bert, "xylophonist cat", settings=Augmentation(probability=0.0)) == []


def test_decoder_is_rejected() -> None:
    with pytest.raises(UserError, match="is not a masked language model with a WordPiece tokenizer"):
        augment(tiny("gpt2"), TEXTS[0])


@pytest.mark.parametrize("option", [{"copies": 0}, {"candidates": -1}, {"probability": 1.5}])
def test_invalid_setting_is_an_error(option: dict[str, float]) -> None:
    [(name, value)] = option.items()
    with pytest.raises(UserError, match=rf"{name} \({value}\) must be"):
        Augmentation(**option)  # type: ignore[arg-type]
