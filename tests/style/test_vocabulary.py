"""Names and docstrings follow the glossary."""

import ast

import pytest

from tests.style.vocabulary import (
    FRAGMENT,
    identifiers,
    messages,
    messages_with_rejected_words,
    rejected_in_message,
    rejected_names,
    rejected_words,
    remaining,
    texts_with_rejected_phrases,
    violations,
    words_of,
)


def test_no_room_gains_rejected_names_or_fragments():
    """Rooms that are not rewritten yet are listed with their number in remaining.yaml; all others have none."""
    allowed = remaining()
    assert {room: count for room, count in violations().items() if count > allowed.get(room, 0)} == {}


def test_messages_have_no_rejected_words():
    assert messages_with_rejected_words() == []


def test_docstrings_and_pages_have_no_rejected_phrases():
    assert texts_with_rejected_phrases() == []


@pytest.mark.parametrize(
    "code",
    [
        "raise UserError(f'{a} is wrong: correct it.')",
        "raise _broken(pattern, f'{a} is wrong: correct it.')",
        "Unreadable('kind', remedy=f'{a} is wrong: correct it.')",
        "Record(reason=f'{a} is wrong: correct it.')",
        "class A:\n    reason: ClassVar[str] = f'{a} is wrong: correct it.'",
        "def errors() -> Iterator[str]:\n    yield f'{a} is wrong: ' + 'correct it.'",
    ],
)
def test_messages_of_a_module(code):
    """Errors, helpers that make errors, reasons and yielded strings are messages."""
    assert list(messages(ast.parse(code))) == ["X is wrong: correct it."]


def test_message_may_have_words_of_plain_english():
    assert rejected_in_message("at least one is given; the weights were told") == {"told"}


def test_glossary_rejects_words_anywhere_in_a_name():
    assert {"said", "least", "place"} <= rejected_words()
    assert words_of("least_places") == ["least", "places"]
    assert words_of("HTTPPlace") == ["http", "place"]


def test_glossary_rejects_empty_names_alone():
    assert {"one", "found", "what"} <= rejected_names()
    assert "one" not in rejected_words()


def test_identifiers_of_a_module():
    tree = ast.parse("class A:\n    def f(self, x):\n        self.y = x\n        z: int = y\n")
    assert set(identifiers(tree)) == {"A", "f", "self", "x", "y", "z"}


def test_fragment_is_a_whole_word():
    assert FRAGMENT.match("Of a document.")
    assert not FRAGMENT.match("Offset of a document.")
