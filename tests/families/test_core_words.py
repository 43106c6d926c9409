"""The core holds no word of a family's idea."""

import ast

from megaptm.extensions import EXTENSIONS
from megaptm.families import FOLDERS
from tests.families.core_words import WORDS, count, counts, remaining

GENERAL = {"transformer", "gpt", "bert", "roberta", "t5"}
"""Families whose parts are the core's."""


def test_core_gains_no_words_of_families():
    """Remaining words are listed in core_words.yaml with their numbers."""
    allowed = remaining()
    more = {
        f"{room}: {word}": number
        for room, words in counts().items()
        for word, number in words.items()
        if number > allowed.get(room, {}).get(word, 0)
    }
    assert more == {}


def test_each_folder_has_words():
    assert {*WORDS} == {*FOLDERS} - GENERAL | {name.rpartition(".")[2] for name in EXTENSIONS}


def test_words_are_found_in_identifiers_and_strings():
    tree = ast.parse('"""LSH."""\ndef hashLSH(reversible_layers): return "two image-text pairs", {}.cutoffs')
    assert count(tree) == {"lsh": 1, "reversible": 1, "image": 1, "image-text": 1, "cutoffs": 1}


def test_parts_of_words_do_not_count():
    assert count(ast.parse("dispatch(undrawn, called)")) == {}
