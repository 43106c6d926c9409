"""Options of annotations in a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.annotate.phrases import load_phrase_finder
from data_pipeline.annotate.tags import load_tagger
from data_pipeline.annotate.turns import ROLES
from data_pipeline.annotate.words import load_segmenter
from data_pipeline.functions import function_source_file, is_function
from megaptm.errors import UserError

CHARACTERS, WORDS = "characters", "words"


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """Kinds of annotations that are stored; see docs/corpus-annotations.md."""

    sentences: bool | None = None
    """Whether to store starts of sentences in prose, and of lines in code, for objectives on pairs of texts. Default:
    if the tokenizer can separate two texts."""
    words: bool = False
    """Whether to store starts of words, for whole-word masking with any tokenizer."""
    capitals: bool = False
    """Whether to mark tokens of words that start with a capital letter, for tokenizers that convert to lower case."""
    chinese: str = CHARACTERS
    """Segmentation of Chinese: one character per word (`characters`), jieba (`words`), a word list (see
    `dictionary.py`), or a function (`package.module:function`: text -> words whose concatenation is the text)."""
    phrases: str | None = None
    """Phrases: Chinese words of several characters found by jieba (`words`), the lines of a file, or
    `package.module:function` (see `phrases.py`)."""
    tags: str | None = None
    """Labeled phrases: a file of `label<TAB>phrase` lines, or `package.module:function` (see `tags.py`)."""
    turns: bool = False
    """Whether to annotate starts and speakers of turns, for documents with the note `turns`."""
    parts: bool = False
    """Whether to annotate the starts of the parts of a document, such as a sentence and its translation. Set by a
    recipe whose sources have parts."""
    labels: tuple[str, ...] = ()
    """All labels of documents, in index order. The label of a document is its note `label`."""

    def __post_init__(self) -> None:
        if self.chinese not in (CHARACTERS, WORDS) and not is_function(self.chinese) and not Path(self.chinese).suffix:
            raise UserError(
                f"annotate.chinese ({self.chinese}) must be `{CHARACTERS}`, `{WORDS}`, a file of words such as "
                "words.txt, or `package.module:function`."
            )
        if len({*self.labels}) < len(self.labels):
            raise UserError(f"annotate.labels ({', '.join(self.labels)}) contains a label twice: remove one.")
        if self.chinese != CHARACTERS and not self.words:
            raise UserError("annotate.chinese needs annotate.words: set annotate.words=true.")

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the requested annotations, in the order of the manifest's fields."""
        requested = {
            "sentences": bool(self.sentences),
            "words": self.words,
            "capitals": self.capitals,
            "phrases": self.phrases is not None,
            "tags": self.tags is not None,
            "turns": self.turns,
            "parts": self.parts,
            "labels": bool(self.labels),
        }
        return tuple(name for name, is_requested in requested.items() if is_requested)

    def tables(self) -> dict[str, list[str]]:
        """Return the names of labels, tags and roles by index, for the manifest of a corpus."""
        labels = {"tags": list(load_tagger(self.tags).labels)} if self.tags is not None else {}
        labels |= {"labels": list(self.labels)} if self.labels else {}
        return labels | ({"turns": list(ROLES)} if self.turns else {})

    def input_files(self) -> tuple[str, ...]:
        """Return the files that the annotations of a corpus depend on."""
        named = [name for name in (self.chinese, self.phrases, self.tags) if name not in (None, CHARACTERS, WORDS)]
        files = [
            function_source_file(name, "annotate") if is_function(name) else name for name in named if name is not None
        ]
        return tuple(file for file in files if file is not None)

    def check(self) -> None:
        """Raise `UserError` if a file or function of the annotations does not exist, before workers start."""
        if self.phrases is not None:
            load_phrase_finder(self.phrases)
        if self.tags is not None:
            load_tagger(self.tags)
        if self.chinese != CHARACTERS:
            load_segmenter(self.chinese)
