"""Word vector families: word2vec, GloVe and fastText (tables of vectors), NNLM and C&W (networks with one hidden
layer). Corpora, sample order, checkpoints and runs are shared with other models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from megaptm.errors import UserError
from megaptm.spec import LayerlessFamily, LayerlessSpec, TokenizerSpec

# Rows are assigned to data ranks by their index modulo this, for any number of ranks. A table thus has the same shape
# in every checkpoint, and each rank has an equal share of the frequent words, which come first.
LANES = 128
TAG_FILTER, TAG_DISTANCES = 5, 41
"""Filter width, in words, of the tagging convolution, and number of positions around a word that its output is
max-pooled over: 20 per side, which few sentences exceed."""


@dataclass(frozen=True, kw_only=True)
class WordSize:
    """Sizes of the tables and projections of a family of word vectors."""

    width: int
    """Width of a word vector."""
    buckets: int = 0
    """Number of rows for character n-grams, shared by hash; 0: a word has only its own row."""
    ngrams: tuple[int, int] = (0, 0)
    """Minimum and maximum number of characters of an n-gram (fastText). Shorter and longer n-grams have no vector."""
    hidden: int = 0
    """Number of hidden units of a network of word vectors (NNLM, C&W)."""
    before: int = 0
    """Number of words in a network's window before the predicted or ranked word."""
    after: int = 0
    """Number of words after that word, in networks that rank windows."""
    direct: bool = False
    """Whether the vectors are also projected directly to the output, in networks that predict the next word."""


@dataclass(frozen=True, kw_only=True)
class WordFamily(LayerlessFamily):
    """Family of word vectors of one paper."""

    title = "word vectors"
    evaluate_options = ("words", "analogies")
    usage = (
        "train it, export it with `megaptm export words`, and use `megaptm evaluate` and `megaptm.load_words` for "
        "neighbors"
    )
    export_command = "words"
    required_keys = ("width",)

    model: str = "tables"
    """Kind of model.

    - `tables`: an input and an output table of word vectors
    - `pairs`: the same, with a bias per row and a sum of squared gradients per number (AdaGrad)
    - `next-word`: a network that predicts the word after a window
    - `ranking`: a network that computes a score of a window
    """
    init_bound: float
    """Bound of uniform initial values: divided by the width for an input table, multiplied by `Network.bound` of
    `networks` for the parameters of a network."""
    sizes: dict[str, WordSize]

    @property
    def is_network(self) -> bool:
        """Whether the family of word vectors is a network, trained with the gradient of a whole step."""
        return self.model in ("next-word", "ranking")

    @property
    def size_fields(self) -> tuple[str, ...]:
        """Return the names of the `WordSize` fields that the family uses."""
        pieces = ("buckets", "ngrams") if any(size.buckets for size in self.sizes.values()) else ()
        network_fields = {"next-word": ("hidden", "before", "direct"), "ranking": ("hidden", "before", "after")}
        return ("width", *pieces, *network_fields.get(self.model, ()))

    def make_spec(self, model: Any, objective: Any) -> WordSpec:
        from megaptm.families.word_vectors.ranking import WindowRanking

        table = self.sizes.get(model.size, next(iter(self.sizes.values())))
        configured = {name: value for name in self.size_fields if (value := getattr(model, name)) is not None}
        return WordSpec(
            family=self,
            size=replace(table, **configured),
            vocabulary=self.tokenizer.vocabulary if model.vocabulary is None else model.vocabulary,
            tags=objective.num_tags if isinstance(objective, WindowRanking) else 0,
        )

    def published(self, size: str) -> WordSpec:
        return WordSpec(family=self, size=self.sizes[size], vocabulary=self.tokenizer.vocabulary)

    def config_errors(self, config: Any) -> Iterator[str]:
        from megaptm.families.word_vectors.rules import word_vector_errors

        return word_vector_errors(config, self)

    def model_errors(self, model: Any) -> Iterator[str]:
        from megaptm.families.word_vectors.rules import word_model_errors

        return word_model_errors(model, self)

    def build_engine(self, config: Any, spec: WordSpec, corpora: Any, *, timeout_minutes: float) -> Any:
        try:
            from megaptm.families.word_vectors.engines import build_word_engine

            return build_word_engine(config, spec, corpora, timeout_minutes=timeout_minutes)
        except ModuleNotFoundError as error:
            if error.name != "numba":
                raise
            raise UserError(f"{spec.name} needs numba: install it with `pip install 'megaptm[words]'`.") from None

    def build_source(self, config: Any, engine: Any, corpora: Any) -> Any:
        from megaptm.families.word_vectors.pair_source import PairSource

        return PairSource(config, corpora, engine) if self.model == "pairs" else None

    def load(self, checkpoint: Any) -> Any:
        from megaptm.families.word_vectors.vectors import read_vectors

        return read_vectors(checkpoint)

    def evaluate(self, run: Path, **options: Any) -> None:
        from megaptm.families.word_vectors.evaluate import evaluate_word_vectors

        evaluate_word_vectors(run, **options)


@dataclass(frozen=True, kw_only=True)
class WordSpec(LayerlessSpec):
    """Spec of word vectors with a size and a vocabulary: tables, or a network."""

    family: WordFamily
    size: WordSize
    tags: int = 0
    """Number of tags that a ranking network also predicts from the same vectors; 0: none."""

    @property
    def window(self) -> int:
        """Return the number of word vectors that a network reads at once."""
        return self.size.before + (1 + self.size.after if self.family.model == "ranking" else 0)

    @property
    def output_width(self) -> int:
        """Return the width of NNLM's output weights: the hidden units and, with direct connections, the
        vectors of the window."""
        return self.size.hidden + self.size.direct * self.window * self.size.width

    @property
    def parameters(self) -> int:
        """Return the number of parameters of word vectors: input and output weights of all words, n-grams, and hidden
        layers."""
        words, size = self.vocabulary, self.size
        maps = size.hidden * (self.window * size.width + 1)
        if self.family.model == "next-word":
            return words * size.width + maps + words * (self.output_width + 1)
        if self.family.model == "ranking":
            filters = size.hidden * (TAG_FILTER * size.width + 1 + TAG_DISTANCES)
            tagging = filters + (size.hidden + 1) * (size.hidden + 1 + self.tags)
            return words * size.width + maps + size.hidden + 1 + (tagging if self.tags else 0)
        return (2 * words + size.buckets) * (size.width + (self.family.model == "pairs"))

    @property
    def bytes(self) -> int:
        """Return the bytes of the parameters of word vectors, and of their optimizer state in the tables."""
        return 4 * self.parameters * (2 if self.family.model == "pairs" else 1)

    @property
    def is_replicated(self) -> bool:
        return self.family.is_network

    def identity(self) -> dict[str, Any]:
        # In the form that JSON returns: a list, and None without subword n-grams.
        ngrams = [*self.size.ngrams] if self.size.buckets else None
        return {**asdict(self.size), "ngrams": ngrams, "vocabulary": self.vocabulary}


# arXiv:1310.4546; the default width of the released code, and width and vocabulary of the Google News vectors.
WORD2VEC = WordFamily(
    name="word2vec",
    paper="arXiv:1310.4546",
    tokenizer=TokenizerSpec(kind="words", vocabulary=3_000_000),
    init_bound=0.5,
    objectives=("skip-gram", "cbow"),
    sizes={"small": WordSize(width=100), "google-news": WordSize(width=300)},
)

# aclanthology.org/D14-1162; widths and vocabulary of the vectors of Wikipedia and Gigaword, 6 billion words.
GLOVE = WordFamily(
    name="glove",
    paper="aclanthology.org/D14-1162",
    tokenizer=TokenizerSpec(kind="words", vocabulary=400_000),
    model="pairs",
    init_bound=0.5,
    objectives=("glove",),
    sizes={f"{width}d": WordSize(width=width) for width in (50, 100, 200, 300)},
)

# arXiv:1607.04606: a word is the mean of its own vector and those of its n-grams; defaults of the released code, and
# the vectors of Common Crawl (arXiv:1802.06893).
FASTTEXT = WordFamily(
    name="fasttext",
    paper="arXiv:1607.04606",
    tokenizer=TokenizerSpec(kind="words", vocabulary=2_000_000),
    init_bound=1.0,
    objectives=("skip-gram", "cbow"),
    sizes={
        "small": WordSize(width=100, buckets=2_000_000, ngrams=(3, 6)),
        "crawl": WordSize(width=300, buckets=2_000_000, ngrams=(5, 5)),
    },
)

# Journal of Machine Learning Research 3 (2003), section 4: the best models without a mixture with trigrams. The
# vocabulary is that of AP News; Brown has 16,383 words.
NNLM = WordFamily(
    name="nnlm",
    paper="jmlr.org/papers/v3/bengio03a",
    tokenizer=TokenizerSpec(kind="words", vocabulary=17_964),
    model="next-word",
    init_bound=1.0,
    objectives=("causal-lm",),
    sizes={
        "brown": WordSize(width=30, hidden=100, before=4),
        "ap-news": WordSize(width=100, hidden=60, before=5, direct=True),
    },
)

# The window and its layers are those of arXiv:1103.0398, sections 3.5 and 4; the vocabulary is the paper's.
CW = WordFamily(
    name="cw",
    paper="10.1145/1390156.1390177",
    tokenizer=TokenizerSpec(kind="words", vocabulary=30_000),
    model="ranking",
    init_bound=3**0.5,
    objectives=("window-ranking",),
    sizes={"small": WordSize(width=50, hidden=100, before=5, after=5)},
)

FAMILIES = (NNLM, CW, WORD2VEC, GLOVE, FASTTEXT)
