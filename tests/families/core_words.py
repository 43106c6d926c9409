"""Words of the ideas of families, and the files of the core that contain them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator

from tests import ROOT

WORDS = {
    "albert": ("albert",),
    "bart": ("bart",),
    "bigbird": ("bigbird",),
    "clip": ("caption", "image-text", "tower"),
    "cove": ("attentive", "cove", "lstm"),
    "deberta": ("deberta", "disentangled"),
    "distilbert": ("distilbert", "tinybert"),
    "electra": ("discriminator", "drawn", "electra", "replaced-token"),
    "elmo": ("bidirectional-lm", "character-id", "character-word", "elmo", "highway", "recurrent"),
    "ernie": ("capitalization", "ernie"),
    "infoword": ("infoword",),
    "led": ("led",),
    "longformer": ("longformer",),
    "macbert": ("macbert",),
    "eurobert": ("eurobert",),
    "modernbert": ("ettin", "mmbert", "modernbert"),
    "neobert": ("neobert",),
    "nomic_bert": ("nomic",),
    "palm": ("palm",),
    "reformer": ("axial", "lsh", "reformer", "reversible"),
    "spanbert": ("span-boundary", "spanbert"),
    "t5gemma": ("t5gemma",),
    "transformer_xl": ("adaptive", "cutoffs", "transformer-xl"),
    "unilm": ("unilm",),
    "unimo": ("unimo",),
    "uniter": ("detector", "region", "uniter"),
    "vit": ("image", "patch", "vit"),
    "word_vectors": ("cbow", "fasttext", "glove", "nnlm", "skip-gram", "word2vec"),
    "xlnet": ("query-stream", "xlnet"),
    "distillation": ("distill", "distillation", "student", "teacher"),
}
"""Folder of a family, or of an extension -> words of its ideas, lower case; a hyphen joins consecutive words. Plurals
count as well."""
OUTSIDE = ("megaptm/families/", "megaptm/distillation/")
"""Folders that are not the core."""
OTHER_MEANINGS = {
    ("data_pipeline/document.py", "image"): "name of a note in the metadata of shards",
    ("data_pipeline/sources/formats/wikipedia.py", "image"): "namespace of Wikipedia",
    ("data_pipeline/clean/language.py", "fasttext"): "library whose models identify languages",
    ("data_pipeline/clean/models.py", "fasttext"): "library whose models score texts",
    ("megaptm/check/software.py", "image"): "container image",
    ("megaptm/launch/slurm/script.py", "image"): "container image",
    ("megaptm/credentials.py", "image"): "container image",
    ("megaptm/plugins.py", "distillation"): "list of extensions",
    ("megaptm/config/errors.py", "cutoffs"): "argument of difflib",
    ("megaptm/config/shipped.py", "cutoffs"): "argument of difflib",
}
"""File and word -> what else the word means there."""


def core_files() -> list[str]:
    """Return the Python files of the core."""
    files = subprocess.check_output(["git", "ls-files", "megaptm/*.py", "data_pipeline/*.py"], cwd=ROOT, text=True)
    return [file for file in files.split() if not file.startswith(OUTSIDE) and (ROOT / file).exists()]


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the identifiers and strings of a module, without docstrings."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name


def words_of(text: str) -> str:
    """Return the words of an identifier or string in lower case and singular, each between hyphens."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)
    return f"-{'-'.join(word.lower().removesuffix('es' if word.endswith('ches') else 's') for word in words)}-"


def count(tree: ast.Module) -> Counter[str]:
    """Return word -> number of identifiers and strings of a module that contain it."""
    patterns = {word: words_of(word) for words in WORDS.values() for word in words}
    # Megatron calls the operators of tensor parallelism regions.
    identifiers = [words_of(text).replace("-parallel-region-", "-") for text in texts(tree)]
    counts = {word: sum(pattern in text for text in identifiers) for word, pattern in patterns.items()}
    return Counter({word: number for word, number in counts.items() if number})


def words_in_core() -> dict[str, dict[str, int]]:
    """Return file of the core -> word -> number of identifiers and strings that contain it."""
    files = {file: count(ast.parse((ROOT / file).read_text(encoding="utf-8"))) for file in core_files()}
    left = {
        file: {word: number for word, number in words.items() if (file, word) not in OTHER_MEANINGS}
        for file, words in files.items()
    }
    return {file: words for file, words in left.items() if words}
