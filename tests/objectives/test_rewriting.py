"""Rewritten captions: those that are said to say the same do, those that are said not to do not."""

from __future__ import annotations

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.objectives.rewriting import Meaning, PhraseMatch, Rewriter, Text, join_words, split_words


def words(text: str) -> Text:
    return tuple(text.split())


def said(*meanings: str) -> list[list[Text]]:
    """A meaning: phrases with bars between them."""
    return [[words(phrase) for phrase in meaning.split("|")] for meaning in meanings]


SCENES = Rewriter(
    {
        "objects": said("circle|disc|round thing", "square|box", "dog|hound", "hot dog|sausage"),
        "attributes": said("red|scarlet", "blue|azure", "hot|warm"),
        "relations": said("left of|on the left of", "above|over"),
    }
)
CAPTION = words("a red circle is left of the blue square .")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_phrases_are_found_the_longest_first():
    assert SCENES.find(words("hot dog left of a warm dog")) == [
        PhraseMatch(0, 2, Meaning("objects", 3)),
        PhraseMatch(2, 4, Meaning("relations", 0)),
        PhraseMatch(5, 6, Meaning("attributes", 2)),
        PhraseMatch(6, 7, Meaning("objects", 2)),
    ]
    assert SCENES.find(()) == SCENES.find(words("nothing that it knows")) == []


def test_what_is_kept_says_the_same_in_other_words():
    made = SCENES.paraphrases(CAPTION, rng(), number=20)
    assert len({*made}) == 20
    assert CAPTION not in made
    assert all(SCENES.parse(one) == SCENES.parse(CAPTION) for one in made)
    assert {"scarlet", "disc", "azure", "box", "on"} <= {word for one in made for word in one}
    assert not any({"dog", "over", "hot"} & {*one} for one in made)
    assert all(one[0] == "a" and one[-1] == "." for one in made)


def test_what_is_broken_says_another_thing_at_one_place():
    made = SCENES.negatives(CAPTION, rng(), number=12)
    assert len({*made}) == 12
    changed = []
    for one in made:
        ours, theirs = SCENES.parse(one), SCENES.parse(CAPTION)
        [(new, old)] = [(new, old) for new, old in zip(ours, theirs, strict=True) if new != old]
        assert isinstance(new, Meaning)
        assert isinstance(old, Meaning)
        assert new.kind == old.kind
        changed.append(new.kind)
    assert {*changed} == {"objects", "attributes", "relations"}


def test_whole_phrases_are_broken_at_an_object_and_its_attributes():
    text = words("a hot red circle above a dog")
    kinds = set()
    for one in SCENES.negatives(text, rng(), number=30, with_attributes=True):
        changed = [a.kind for a, b in zip(SCENES.parse(one), SCENES.parse(text), strict=True) if a != b]
        kinds.add(tuple(changed))
    assert kinds == {("attributes", "attributes", "objects"), ("objects",)}


def test_words_that_make_another_phrase_with_their_neighbors_are_not_taken():
    """A warm dog is a hot dog in no other words."""
    assert {*SCENES.paraphrases(words("a warm dog"), rng(), number=9)} == {words("a hot hound"), words("a warm hound")}
    assert words("a hot dog") not in SCENES.negatives(words("a red dog"), rng(), number=20)


def test_where_nothing_can_be_said_otherwise_there_is_nothing():
    one = Rewriter({"objects": said("circle|disc"), "attributes": said("red")})
    assert one.paraphrases(words("a red one"), rng()) == one.negatives(words("a red circle"), rng()) == []
    assert one.negatives(words("a red circle"), rng(), with_attributes=True) == []
    assert one.paraphrases(words("a red circle"), rng(), number=5) == [words("a red disc")]
    assert SCENES.paraphrases((), rng()) == SCENES.negatives((), rng()) == []
    assert Rewriter({}).negatives(CAPTION, rng()) == []


def test_the_same_generator_makes_the_same_texts():
    for make in (SCENES.paraphrases, SCENES.negatives):
        assert make(CAPTION, rng(), number=3) == make(CAPTION, rng(), number=3)
        assert make(CAPTION, rng(), number=3) != make(CAPTION, np.random.default_rng(1), number=3)


def test_words_are_tokens_and_tokens_words():
    tokens, begins = np.array([7, 8, 9, 7, 5]), np.array([1, 0, 1, 1, 0])
    assert split_words(tokens, begins) == ((7, 8), (9,), (7, 5))
    assert split_words(tokens, np.zeros(5, dtype=int)) == (tuple(tokens.tolist()),)
    assert split_words(tokens[:0], begins[:0]) == ()
    assert join_words(split_words(tokens, begins)).tolist() == tokens.tolist()
    by_ids = Rewriter({"objects": [[((7, 8),)], [((4,), (3,)), ((2,),)]]})
    assert {*by_ids.negatives(split_words(tokens, begins), rng(), number=9)} == {
        ((4,), (3,), (9,), (7, 5)),
        ((2,), (9,), (7, 5)),
    }


@pytest.mark.parametrize(
    ("meanings", "message"),
    [
        ({"verbs": said("runs")}, "rewriting: 'verbs' is not a kind of phrases: use objects, attributes, relations."),
        ({"objects": [[]]}, "rewriting: meaning 0 of the objects has no phrases: add one, or remove the meaning."),
        ({"objects": [[()]]}, "rewriting: a phrase of the objects has no words: remove it."),
        (
            {"objects": said("orange"), "attributes": said("red", "orange")},
            "rewriting: ('orange',) occurs twice, among the objects and the attributes: a phrase has one meaning; "
            "remove one.",
        ),
    ],
)
def test_lists_that_cannot_be_read_are_refused(meanings, message):
    with pytest.raises(UserError) as refused:
        Rewriter(meanings)
    assert str(refused.value) == message
