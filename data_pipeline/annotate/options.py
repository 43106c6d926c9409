"""What a recipe asks to be kept beside the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.annotate.phrases import phrase_finder
from data_pipeline.annotate.tags import tagger_named
from data_pipeline.annotate.turns import ROLES
from data_pipeline.annotate.words import segmenter_named
from data_pipeline.functions import file_of, is_function
from megaptm.errors import UserError

CHARACTERS, WORDS = "characters", "words"


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """Kinds of places in a text that are found and stored; see docs/corpus-annotations.md."""

    sentences: bool | None = None
    """Where sentences of prose and lines of code begin: pairs of texts need them. Absent: where the tokenizer can
    separate two texts."""
    words: bool = False
    """Where words begin: masks of whole words need them, whatever the tokenizer."""
    capitals: bool = False
    """Which tokens are of words that begin with a capital letter: those of a tokenizer that makes letters small."""
    chinese: str = CHARACTERS
    """A Chinese word is one character (`characters`), or what jieba finds (`words`), a file of words has (see
    `dictionary.py`) or a function finds (`package.module:function`, text -> words that put end to end are it)."""
    phrases: str | None = None
    """Phrases: Chinese words of several characters that jieba finds (`words`), those of a file with one in each line,
    or `package.module:function` (see `phrases.py`)."""
    tags: str | None = None
    """Phrases and their labels: a file of `label<TAB>phrase` lines, or `package.module:function` (see `tags.py`)."""
    turns: bool = False
    """Who speaks from where on, for documents whose notes have `turns`."""
    parts: bool = False
    """Where each of the texts begins that a document is made of; a recipe asks for it where its sources have such."""
    labels: tuple[str, ...] = ()
    """Those that documents may have, in the order of their numbers; a document's is its note `label`."""

    def __post_init__(self) -> None:
        if self.chinese not in (CHARACTERS, WORDS) and not is_function(self.chinese) and not Path(self.chinese).suffix:
            raise UserError(
                f"annotate.chinese ({self.chinese}) must be `{CHARACTERS}`, `{WORDS}`, a file of words such as "
                "words.txt, or `package.module:function`."
            )
        if len({*self.labels}) < len(self.labels):
            raise UserError(f"annotate.labels ({', '.join(self.labels)}) has one twice: remove it.")
        if self.chinese != CHARACTERS and not self.words:
            raise UserError("annotate.chinese says how words are found: ask for annotate.words too.")

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the arrays that documents get, in the order a manifest lists them."""
        asked = {
            "sentences": bool(self.sentences),
            "words": self.words,
            "capitals": self.capitals,
            "phrases": self.phrases is not None,
            "tags": self.tags is not None,
            "turns": self.turns,
            "parts": self.parts,
            "labels": bool(self.labels),
        }
        return tuple(name for name, wanted in asked.items() if wanted)

    def tables(self) -> dict[str, list[str]]:
        """What the numbers in `tags` and `turns` mean, for the manifest: number i is the i-th name."""
        labels = {"tags": list(tagger_named(self.tags).labels)} if self.tags is not None else {}
        labels |= {"labels": list(self.labels)} if self.labels else {}
        return labels | ({"turns": list(ROLES)} if self.turns else {})

    def inputs(self) -> tuple[str, ...]:
        """Files whose content the result depends on."""
        named = [name for name in (self.chinese, self.phrases, self.tags) if name not in (None, CHARACTERS, WORDS)]
        files = [file_of(name, "annotate") if is_function(name) else name for name in named if name is not None]
        return tuple(file for file in files if file is not None)

    def check(self) -> None:
        """Raise a `UserError` now for a file or function that is not there, rather than in a worker."""
        if self.phrases is not None:
            phrase_finder(self.phrases)
        if self.tags is not None:
            tagger_named(self.tags)
        if self.chinese != CHARACTERS:
            segmenter_named(self.chinese)
