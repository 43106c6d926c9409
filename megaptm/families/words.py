"""The first generation: word2vec, GloVe and fastText, tables of words; NNLM and C&W, networks of one hidden layer. None
is a stack of layers, so they have a small type of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

# Rows are dealt to data ranks by their number modulo this, whatever their number of ranks: a table has the same shape
# in every checkpoint, and each rank has as many frequent words, which come first.
LANES = 128
TAG_FILTER, TAG_DISTANCES = 5, 41
"""Words that a filter reads of a text whose words are tagged, and places of it, around a word, whose largest number
counts: 20 to a side, which few sentences exceed."""


@dataclass(frozen=True, kw_only=True)
class WordSize:
    """How large a family's tables and maps are."""

    width: int
    """Numbers of a word's vector."""
    buckets: int = 0
    """Rows of pieces of words, many of which share one by a hash; 0: a word has its own row alone."""
    ngrams: tuple[int, int] = (0, 0)
    """Characters of the shortest and of the longest piece of a word that has a row."""
    hidden: int = 0
    """Of a network: units between the vectors of a window and what is said of it."""
    before: int = 0
    """Of a network: words of its window before the one that it is asked about."""
    after: int = 0
    """Of one that judges windows: words of it after that one."""
    direct: bool = False
    """Of one that says the next word: whether the vectors are also mapped to it directly, past the hidden units."""


@dataclass(frozen=True, kw_only=True)
class WordFamily:
    """A paper's word vectors."""

    name: str
    paper: str
    vocabulary: int
    """Published number of words; a config takes that of its own tokenizer."""
    model: str = "tables"
    """`tables` (two, of words and of what is told from them), `pairs` (the same, a bias a row, and a sum of squares for
    each number, which says how far it still moves: AdaGrad), `next-word` (a network that says the word behind a window)
    or `ranking` (one that gives a window a number)."""
    tokenizer: str = "words"
    """Kind of tokenizer, one of `tokenizers.KINDS`."""
    specials: str | None = None
    """Its special tokens; None: those that its kind of tokenizer has by default."""
    initial: float
    """Numbers of the input table begin between minus and plus this over the width; of a network's table and maps, times
    what `words.networks` has for so many inputs."""
    objectives: tuple[str, ...]
    """Tasks that it learns by; the first is the default of a config."""
    sizes: dict[str, WordSize] = field(default_factory=dict)

    @property
    def network(self) -> bool:
        """Whether it is one, which learns by the gradient of a whole step."""
        return self.model in ("next-word", "ranking")

    @property
    def numbers(self) -> tuple[str, ...]:
        """Fields of its sizes that say something."""
        pieces = ("buckets", "ngrams") if any(size.buckets for size in self.sizes.values()) else ()
        of_model = {"next-word": ("hidden", "before", "direct"), "ranking": ("hidden", "before", "after")}
        return ("width", *pieces, *of_model.get(self.model, ()))


@dataclass(frozen=True, kw_only=True)
class WordSpec:
    """A family at a size with a vocabulary: everything needed to build or count one set of tables, or one network."""

    family: WordFamily
    size: WordSize
    vocabulary: int
    tags: int = 0
    """Labels that a network which judges windows also gives to words, by the same vectors; 0: it does not."""
    positions: int = 0
    """Places of a window that have rows of their own, behind all others of the input table; 0: they have none."""

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def window(self) -> int:
        """Vectors that a network reads at once."""
        return self.size.before + (1 + self.size.after if self.family.model == "ranking" else 0)

    @property
    def read(self) -> int:
        """Numbers that a network says the next word from, for each of which a word has one: hidden units, and where
        maps are direct the vectors."""
        return self.size.hidden + self.size.direct * self.window * self.size.width

    @property
    def parameters(self) -> int:
        """Of all words, as what goes into a hidden vector and as what is told from it; of pieces of words; of maps."""
        words, size = self.vocabulary, self.size
        maps = size.hidden * (self.window * size.width + 1)
        if self.family.model == "next-word":
            return words * size.width + maps + words * (self.read + 1)
        if self.family.model == "ranking":
            filters = size.hidden * (TAG_FILTER * size.width + 1 + TAG_DISTANCES)
            tagging = filters + (size.hidden + 1) * (size.hidden + 1 + self.tags)
            return words * size.width + maps + size.hidden + 1 + (tagging if self.tags else 0)
        return (2 * words + size.buckets + self.positions) * (size.width + (self.family.model == "pairs"))

    @property
    def bytes(self) -> int:
        """Of these, and of what is remembered of each."""
        return 4 * self.parameters * (2 if self.family.model == "pairs" else 1)


# arXiv:1310.4546; the default width of the released code, and that of the vectors of Google News with their number.
WORD2VEC = WordFamily(
    name="word2vec",
    paper="arXiv:1310.4546",
    vocabulary=3_000_000,
    initial=0.5,
    objectives=("skip-gram", "cbow"),
    sizes={"small": WordSize(width=100), "google-news": WordSize(width=300)},
)

# aclanthology.org/D14-1162; the sizes and words of the vectors of Wikipedia and Gigaword, 6 billion words.
GLOVE = WordFamily(
    name="glove",
    paper="aclanthology.org/D14-1162",
    vocabulary=400_000,
    model="pairs",
    initial=0.5,
    objectives=("glove",),
    sizes={f"{width}d": WordSize(width=width) for width in (50, 100, 200, 300)},
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

# Journal of Machine Learning Research 3 (2003), section 4: of the models that are said to be best, without a mix of
# trigrams; of the words of AP News, of Brown there are 16,383.
NNLM = WordFamily(
    name="nnlm",
    paper="jmlr.org/papers/v3/bengio03a",
    vocabulary=17_964,
    model="next-word",
    initial=1.0,
    objectives=("causal-lm",),
    sizes={
        "brown": WordSize(width=30, hidden=100, before=4),
        "ap-news": WordSize(width=100, hidden=60, before=5, direct=True),
    },
)

# The window and its layers are those of arXiv:1103.0398, sections 3.5 and 4; the words, the paper's.
CW = WordFamily(
    name="cw",
    paper="10.1145/1390156.1390177",
    vocabulary=30_000,
    model="ranking",
    initial=3**0.5,
    objectives=("window-ranking",),
    sizes={"small": WordSize(width=50, hidden=100, before=5, after=5)},
)

WORDS: dict[str, WordFamily] = {family.name: family for family in (NNLM, CW, WORD2VEC, GLOVE, FASTTEXT)}
