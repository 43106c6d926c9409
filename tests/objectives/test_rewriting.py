"""Rewritten captions: those that are said to say the same do, those that are said not to do not."""

from __future__ import annotations

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.objectives.rewriting import Meaning, PhraseFound, Rewriter, Text, tokens_of, words_of


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
        PhraseFound(0, 2, Meaning("objects", 3)),
        PhraseFound(2, 4, Meaning("relations", 0)),
        PhraseFound(5, 6, Meaning("attributes", 2)),
        PhraseFound(6, 7, Meaning("objects", 2)),
    ]
    assert SCENES.find(()) == SCENES.find(words("nothing that it knows")) == []


def test_what_is_kept_says_the_same_in_other_words():
    made = SCENES.kept(CAPTION, rng(), number=20)
    assert len({*made}) == 20
    assert CAPTION not in made
    assert all(SCENES.said(one) == SCENES.said(CAPTION) for one in made)
    assert {"scarlet", "disc", "azure", "box", "on"} <= {word for one in made for word in one}
    assert not any({"dog", "over", "hot"} & {*one} for one in made)
    assert all(one[0] == "a" and one[-1] == "." for one in made)


def test_what_is_broken_says_another_thing_at_one_place():
    made = SCENES.broken(CAPTION, rng(), number=12)
    assert len({*made}) == 12
    changed = []
    for one in made:
        ours, theirs = SCENES.said(one), SCENES.said(CAPTION)
        [(new, old)] = [(new, old) for new, old in zip(ours, theirs, strict=True) if new != old]
        assert isinstance(new, Meaning)
        assert isinstance(old, Meaning)
        assert new.kind == old.kind
        changed.append(new.kind)
    assert {*changed} == {"objects", "attributes", "relations"}


def test_whole_phrases_are_broken_at_an_object_and_its_attributes():
    text = words("a hot red circle above a dog")
    kinds = set()
    for one in SCENES.broken(text, rng(), number=30, whole=True):
        changed = [a.kind for a, b in zip(SCENES.said(one), SCENES.said(text), strict=True) if a != b]
        kinds.add(tuple(changed))
    assert kinds == {("attributes", "attributes", "objects"), ("objects",)}


def test_words_that_make_another_phrase_with_their_neighbors_are_not_taken():
    """A warm dog is a hot dog in no other words."""
    assert {*SCENES.kept(words("a warm dog"), rng(), number=9)} == {words("a hot hound"), words("a warm hound")}
    assert words("a hot dog") not in SCENES.broken(words("a red dog"), rng(), number=20)


def test_where_nothing_can_be_said_otherwise_there_is_nothing():
    one = Rewriter({"objects": said("circle|disc"), "attributes": said("red")})
    assert one.kept(words("a red one"), rng()) == one.broken(words("a red circle"), rng()) == []
    assert one.broken(words("a red circle"), rng(), whole=True) == []
    assert one.kept(words("a red circle"), rng(), number=5) == [words("a red disc")]
    assert SCENES.kept((), rng()) == SCENES.broken((), rng()) == []
    assert Rewriter({}).broken(CAPTION, rng()) == []


def test_the_same_generator_makes_the_same_texts():
    for make in (SCENES.kept, SCENES.broken):
        assert make(CAPTION, rng(), number=3) == make(CAPTION, rng(), number=3)
        assert make(CAPTION, rng(), number=3) != make(CAPTION, np.random.default_rng(1), number=3)


def test_words_are_tokens_and_tokens_words():
    tokens, begins = np.array([7, 8, 9, 7, 5]), np.array([1, 0, 1, 1, 0])
    assert words_of(tokens, begins) == ((7, 8), (9,), (7, 5))
    assert words_of(tokens, np.zeros(5, dtype=int)) == (tuple(tokens.tolist()),)
    assert words_of(tokens[:0], begins[:0]) == ()
    assert tokens_of(words_of(tokens, begins)).tolist() == tokens.tolist()
    by_ids = Rewriter({"objects": [[((7, 8),)], [((4,), (3,)), ((2,),)]]})
    assert {*by_ids.broken(words_of(tokens, begins), rng(), number=9)} == {
        ((4,), (3,), (9,), (7, 5)),
        ((2,), (9,), (7, 5)),
    }


@pytest.mark.parametrize(
    ("meanings", "message"),
    [
        ({"verbs": said("runs")}, "rewriting: 'verbs' is no kind of phrases: use objects, attributes, relations."),
        ({"objects": [[]]}, "rewriting: meaning 0 of the objects has no phrases: give some, or drop it."),
        ({"objects": [[()]]}, "rewriting: a phrase of the objects has no words: leave it out."),
        (
            {"objects": said("orange"), "attributes": said("red", "orange")},
            "rewriting: ('orange',) is there twice, among the objects and the attributes: a phrase has one meaning; "
            "leave one out.",
        ),
    ],
)
def test_lists_that_cannot_be_read_are_refused(meanings, message):
    with pytest.raises(UserError) as refused:
        Rewriter(meanings)
    assert str(refused.value) == message
