"""Rewritten captions: paraphrases keep the meaning, negatives change it."""

from __future__ import annotations

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.families.unimo.rewriting import Meaning, PhraseMatch, Rewriter, Text, join_words, split_words


def words(text: str) -> Text:
    """Split a text into words."""
    return tuple(text.split())


def meanings_of(*meanings: str) -> list[list[Text]]:
    """Return meanings as lists of phrases; bars separate the phrases of a meaning."""
    return [[words(phrase) for phrase in meaning.split("|")] for meaning in meanings]


SCENES = Rewriter(
    {
        "objects": meanings_of("circle|disc|round thing", "square|box", "dog|hound", "hot dog|sausage"),
        "attributes": meanings_of("red|scarlet", "blue|azure", "hot|warm"),
        "relations": meanings_of("left of|on the left of", "above|over"),
    }
)
CAPTION = words("a red circle is left of the blue square .")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_longest_phrase_wins():
    assert SCENES.find(words("hot dog left of a warm dog")) == [
        PhraseMatch(0, 2, Meaning("objects", 3)),
        PhraseMatch(2, 4, Meaning("relations", 0)),
        PhraseMatch(5, 6, Meaning("attributes", 2)),
        PhraseMatch(6, 7, Meaning("objects", 2)),
    ]
    assert SCENES.find(()) == SCENES.find(words("no phrase here")) == []


def test_paraphrases_keep_the_meaning():
    paraphrases = SCENES.paraphrases(CAPTION, rng(), number=20)
    assert len({*paraphrases}) == 20
    assert CAPTION not in paraphrases
    assert all(SCENES.parse(text) == SCENES.parse(CAPTION) for text in paraphrases)
    assert {"scarlet", "disc", "azure", "box", "on"} <= {word for text in paraphrases for word in text}
    assert not any({"dog", "over", "hot"} & {*text} for text in paraphrases)
    assert all(text[0] == "a" and text[-1] == "." for text in paraphrases)


def test_negatives_change_one_phrase():
    negatives = SCENES.negatives(CAPTION, rng(), number=12)
    assert len({*negatives}) == 12
    changed = []
    for text in negatives:
        pairs = zip(SCENES.parse(text), SCENES.parse(CAPTION), strict=True)
        [(new, old)] = [(new, old) for new, old in pairs if new != old]
        assert isinstance(new, Meaning)
        assert isinstance(old, Meaning)
        assert new.kind == old.kind
        changed.append(new.kind)
    assert {*changed} == {"objects", "attributes", "relations"}


def test_negatives_change_an_object_with_its_attributes():
    text = words("a hot red circle above a dog")
    kinds = set()
    for negative in SCENES.negatives(text, rng(), number=30, with_attributes=True):
        changed = [new.kind for new, old in zip(SCENES.parse(negative), SCENES.parse(text), strict=True) if new != old]
        kinds.add(tuple(changed))
    assert kinds == {("attributes", "attributes", "objects"), ("objects",)}


def test_rewriting_creates_no_other_phrase():
    """`warm` is not replaced by `hot` before `dog`, because `hot dog` is another phrase."""
    assert {*SCENES.paraphrases(words("a warm dog"), rng(), number=9)} == {words("a hot hound"), words("a warm hound")}
    assert words("a hot dog") not in SCENES.negatives(words("a red dog"), rng(), number=20)


def test_texts_without_other_phrases_are_not_rewritten():
    rewriter = Rewriter({"objects": meanings_of("circle|disc"), "attributes": meanings_of("red")})
    assert rewriter.paraphrases(words("a red one"), rng()) == rewriter.negatives(words("a red circle"), rng()) == []
    assert rewriter.negatives(words("a red circle"), rng(), with_attributes=True) == []
    assert rewriter.paraphrases(words("a red circle"), rng(), number=5) == [words("a red disc")]
    assert SCENES.paraphrases((), rng()) == SCENES.negatives((), rng()) == []
    assert Rewriter({}).negatives(CAPTION, rng()) == []


def test_rewriting_depends_on_the_generator_only():
    for make in (SCENES.paraphrases, SCENES.negatives):
        assert make(CAPTION, rng(), number=3) == make(CAPTION, rng(), number=3)
        assert make(CAPTION, rng(), number=3) != make(CAPTION, np.random.default_rng(1), number=3)


def test_split_and_join_words():
    tokens, starts = np.array([7, 8, 9, 7, 5]), np.array([1, 0, 1, 1, 0])
    assert split_words(tokens, starts) == ((7, 8), (9,), (7, 5))
    assert split_words(tokens, np.zeros(5, dtype=int)) == (tuple(tokens.tolist()),)
    assert split_words(tokens[:0], starts[:0]) == ()
    assert join_words(split_words(tokens, starts)).tolist() == tokens.tolist()
    by_ids = Rewriter({"objects": [[((7, 8),)], [((4,), (3,)), ((2,),)]]})
    assert {*by_ids.negatives(split_words(tokens, starts), rng(), number=9)} == {
        ((4,), (3,), (9,), (7, 5)),
        ((2,), (9,), (7, 5)),
    }


@pytest.mark.parametrize(
    ("meanings", "message"),
    [
        (
            {"verbs": meanings_of("runs")},
            "rewriting: 'verbs' is not a kind of phrase: use objects, attributes, relations.",
        ),
        ({"objects": [[]]}, "rewriting: meaning 0 of the objects has no phrases: add one, or remove the meaning."),
        ({"objects": [[()]]}, "rewriting: a phrase of the objects has no words: remove it."),
        (
            {"objects": meanings_of("orange"), "attributes": meanings_of("red", "orange")},
            "rewriting: ('orange',) occurs twice, among the objects and the attributes: a phrase has one meaning; "
            "remove one.",
        ),
    ],
)
def test_invalid_meanings_are_rejected(meanings, message):
    with pytest.raises(UserError) as error:
        Rewriter(meanings)
    assert str(error.value) == message
