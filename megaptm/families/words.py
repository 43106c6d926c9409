"""word2vec (Mikolov et al., 2013) and fastText (Bojanowski et al., 2016): tables of words, not stacks of layers, so
they have a small type of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

# Rows are dealt to data ranks by their number modulo this, whatever their number of ranks: a table has the same shape
# in every checkpoint, and each rank has as many frequent words, which come first.
LANES = 128


@dataclass(frozen=True, kw_only=True)
class WordSize:
    """How large a family's tables are."""

    width: int
    """Numbers of a word's vector."""
    buckets: int = 0
    """Rows of pieces of words, many of which share one by a hash; 0: a word has its own row alone."""
    ngrams: tuple[int, int] = (0, 0)
    """Characters of the shortest and of the longest piece of a word that has a row."""


@dataclass(frozen=True, kw_only=True)
class WordFamily:
    """A paper's word vectors."""

    name: str
    paper: str
    vocabulary: int
    """Published number of words; a config takes that of its own tokenizer."""
    tokenizer: str = "words"
    """Kind of tokenizer, one of `tokenizers.KINDS`."""
    specials: str | None = None
    """Its special tokens; None: those that its kind of tokenizer has by default."""
    initial: float
    """Numbers of the input table begin between minus and plus this over the width."""
    objectives: tuple[str, ...]
    """Tasks that it learns by; the first is the default of a config."""
    sizes: dict[str, WordSize] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WordSpec:
    """A family at a size with a vocabulary: everything needed to build or count one set of tables."""

    family: WordFamily
    size: WordSize
    vocabulary: int

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def parameters(self) -> int:
        """Of all words, as what goes into a hidden vector and as what is told from it; and of pieces of words."""
        return (2 * self.vocabulary + self.size.buckets) * self.size.width


# arXiv:1310.4546; the default width of the released code, and that of the vectors of Google News with their number.
WORD2VEC = WordFamily(
    name="word2vec",
    paper="arXiv:1310.4546",
    vocabulary=3_000_000,
    initial=0.5,
    objectives=("skip-gram", "cbow"),
    sizes={"small": WordSize(width=100), "google-news": WordSize(width=300)},
)

# arXiv:1607.04606: a word is the mean of its own vector and those of its pieces; defaults of the released code, and the
# vectors of Common Crawl (arXiv:1802.06893).
FASTTEXT = WordFamily(
    name="fasttext",
    paper="arXiv:1607.04606",
    vocabulary=2_000_000,
    initial=1.0,
    objectives=("skip-gram", "cbow"),
    sizes={
        "small": WordSize(width=100, buckets=2_000_000, ngrams=(3, 6)),
        "crawl": WordSize(width=300, buckets=2_000_000, ngrams=(5, 5)),
    },
)

WORDS: dict[str, WordFamily] = {family.name: family for family in (WORD2VEC, FASTTEXT)}
