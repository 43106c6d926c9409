"""The core holds no word of a family's idea."""

import ast

from megaptm.families import FOLDERS
from megaptm.plugins import EXTENSIONS
from tests.families.core_words import WORDS, count, words_in_core

GENERAL = {"transformer", "gpt", "llama", "qwen3", "olmo2", "mistral", "gemma", "bert", "roberta", "t5"}
"""Families whose parts are the core's."""


def test_core_has_no_words_of_families():
    assert words_in_core() == {}


def test_each_folder_has_words():
    assert {*WORDS} == {*FOLDERS} - GENERAL | {name.rpartition(".")[2] for name in EXTENSIONS}


def test_words_are_found_in_identifiers_and_strings():
    tree = ast.parse('"""LSH."""\ndef hashLSH(reversible_layers): return "two image-text pairs", {}.cutoffs')
    assert count(tree) == {"lsh": 1, "reversible": 1, "image": 1, "image-text": 1, "cutoffs": 1}


def test_parts_of_words_do_not_count():
    assert count(ast.parse("dispatch(undrawn, called)")) == {}
