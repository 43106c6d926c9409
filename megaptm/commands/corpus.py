"""`megaptm corpus`: building corpora from text or images, and inspecting them."""

from __future__ import annotations

import sys

import click

from megaptm.commands.options import Finite, read_part


@click.group()
def corpus() -> None:
    """Build, inspect and verify corpora of text or images.

    \b
      megaptm corpus build 'books/**/*.txt' out=corpora/books tokenizer.vocabulary=4096
      megaptm corpus images photos/ out=corpora/photos
      megaptm corpus inspect corpora/books
      megaptm corpus verify corpora/books
    """


def _complete_setting(ctx: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    """Return the completions of a setting of a build for a shell."""
    from data_pipeline.commands import build_settings

    return [f"{name}=" for name in build_settings() if name.startswith(prefix)]


@corpus.command()
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="SOURCE... out=FOLDER [KEY=VALUE]...",
    shell_complete=_complete_setting,
)
def build(words: tuple[str, ...]) -> None:
    """Build a corpus from text: clean, deduplicate, train a tokenizer, write shards.

    SOURCE is a file, a folder, a quoted glob, a URL, or `python-library`, the source text of Python's standard library.
    A recipe (.yaml) can replace the sources; KEY=VALUE changes its settings.

    \b
      megaptm corpus build python-library out=corpora/python tokenizer.vocabulary=4096
      megaptm corpus build 'books/**/*.txt' notes.jsonl out=corpora/books tokenizer.kind=wordpiece
      megaptm corpus build more/ out=corpora/more tokenizer=corpora/books/tokenizer
      megaptm corpus build data 'reviews*.jsonl:text=content' out=corpora/reviews
      megaptm corpus build configs/corpora/web.yaml out=s3://bucket/web workers=16

    \b
    GLOB:KEY=VALUE   setting for matching files, such as text, format, encoding
    out          folder or URL of the corpus. It appears when the build is complete. The same command again continues
                 a build that was killed.
    workers      number of Ray workers; 0: without Ray  [default: by the size of the input]
    overwrite    true: replace an existing corpus
    scratch      folder for unfinished work, shared by all machines of a Ray cluster
    tokenizer    folder of an existing tokenizer; or tokenizer.kind, tokenizer.vocabulary ... of a new one
    validation   share of held-out documents  [default: 0.02]
    limit_bytes  build from a random sample of about this many bytes of text
    seed, shard_bytes, on_error, deduplicate, steps ...: see docs/corpus.md
    """
    from data_pipeline import commands

    commands.build(words)


@corpus.command()
@click.argument("words", nargs=-1, required=True, metavar="SOURCE out=FOLDER [KEY=VALUE]...")
def images(words: tuple[str, ...]) -> None:
    """Build a corpus from images: check each image, drop unusable ones, write shards.

    SOURCE is a folder with one subfolder of images per label; a folder or s3:// URL of webdataset shards (.tar), which
    stay unchanged and get an index; `digits`, the small images of scikit-learn; or `shapes`, generated images. With
    texts=true each image has a text instead of a label, in 0001.txt or 0001.json beside it or in the shard.

    \b
      megaptm corpus images digits out=corpora/digits validation=0.1
      megaptm corpus images photos/ out=corpora/photos workers=16
      megaptm corpus images imagenet/train out=corpora/imagenet held_out=imagenet/val
      megaptm corpus images shards/ out=corpora/imagenet classes=names.txt check=header
      megaptm corpus images laion/ out=corpora/laion texts=true tokenizer=corpora/captions/tokenizer
      megaptm corpus images s3://bucket/laion out=s3://bucket/laion-corpus texts=true 'steps=[drop-short: {words: 3}]'

    \b
    out, workers, overwrite, scratch   as for `megaptm corpus build`
    validation   share of held-out images, or of held-out shards  [default: 0.02]
    held_out     folder of held-out images, instead of a share
    classes      for webdataset shards: text file with a name for each label; label: .json field of the label
    texts        true: images with texts; text: .json field of the text; max_tokens: maximum tokens of a text
    steps        build steps that change or drop texts, as for `megaptm corpus build`
    regions      true: texts with detector outputs (.npz) instead of images; detector: their sizes
    tokenizer    for texts: folder of an existing tokenizer; or tokenizer.vocabulary ... of a new one
    min_side, max_pixels, max_aspect_ratio   limits for images; check=header: do not decode images
    seed, shard_bytes ...: see docs/images.md
    """
    from data_pipeline import commands

    commands.images(words)


@corpus.command()
@click.argument("folder")
@click.option("--objective", help="Also show samples of this objective: inputs and labels.")
@click.option("--count", type=int, default=3, show_default=True, help="Number of documents to show.")
@click.option("--sequence", type=int, default=128, show_default=True, help="Tokens per sample of the objective.")
@click.option("--split", default="train", show_default=True, help="train or validation.")
def inspect(folder: str, objective: str | None, count: int, sequence: int, split: str) -> None:
    """Show documents of a corpus, and with --objective the samples that a model would read.

    \b
      megaptm corpus inspect corpora/books
      megaptm corpus inspect corpora/books --objective span-corruption --count 5
    """
    from data_pipeline import commands

    commands.inspect(folder, objective=objective, count=count, sequence=sequence, split=split)


@corpus.command()
@click.argument("folder")
def verify(folder: str) -> None:
    """Compare all files of a corpus with its manifest; the exit code is 1 if one differs.

    \b
      megaptm corpus verify corpora/books
    """
    from data_pipeline import commands

    sys.exit(0 if commands.verify(folder) else 1)


@corpus.command("similar-words")
@click.argument("source")
@click.option("--tokenizer", required=True, help="Folder of the tokenizer of the corpus.")
@click.option("--out", required=True, help="Output file, for the objective option `similar`.")
@click.option("--vectors", is_flag=True, help="SOURCE holds word vectors: a word and its values per line.")
@click.option(
    "--top", type=click.IntRange(1), default=10, show_default=True, help="Similar words per word, with --vectors."
)
def similar_words(source: str, tokenizer: str, out: str, vectors: bool, top: int) -> None:
    """Build the table of similar words with which an objective replaces masked words (MacBERT).

    SOURCE has lines of word<TAB>similar similar ..., or with --vectors word vectors in the format of word2vec or GloVe.
    A word is only replaced by a word with the same number of tokens; other pairs are dropped.

    \b
      megaptm corpus similar-words similar.tsv --tokenizer corpora/chinese/tokenizer --out corpora/similar.npz
      megaptm corpus similar-words vectors.txt --vectors --tokenizer corpora/chinese/tokenizer --out corpora/similar.npz
    """
    from data_pipeline import commands

    commands.similar_words(source, tokenizer, out, vectors=vectors, top=top)


@corpus.command()
@click.argument("source")
@click.option("--tokenizer", required=True, help="Folder of the tokenizer of the corpus.")
@click.option("--out", required=True, help="Output file, for the objective option `meanings`.")
def meanings(source: str, tokenizer: str, out: str) -> None:
    """Build the table of synonymous phrases with which an objective rewrites captions (UNIMO).

    SOURCE has lines of kind<TAB>phrase<TAB>phrase ..., with the phrases of one meaning; kinds are objects, attributes
    and relations. Replacing a phrase by one of another meaning of its kind gives a false caption.

    \b
      megaptm corpus meanings phrases.tsv --tokenizer corpora/captions/tokenizer --out corpora/meanings.json
    """
    from data_pipeline import commands

    commands.meanings(source, tokenizer, out)


@corpus.command()
@click.argument("folder")
@click.option("--out", required=True, help="Output file, for the objective option `retrieved`.")
@click.option("--images", help="Corpus of images with regions to search.  [default: FOLDER]")
@click.option("--texts", help="Corpus of short documents to search.  [default: retrieve no texts]")
@click.option(
    "--top", type=click.IntRange(1, 64), default=4, show_default=True, help="Results of each kind per document."
)
@click.option("--threshold", type=Finite(0, 1), default=0.3, show_default=True, help="Minimum similarity.")
@click.option(
    "--block", type=click.IntRange(2), default=1 << 16, show_default=True, help="Documents compared at a time."
)
@click.option(
    "--columns",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Columns of an image that are compared separately.",
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens that are read of a text."
)
@click.option(
    "--detector",
    type=click.IntRange(1),
    nargs=2,
    default=(2048, 1601),
    show_default=True,
    help="Number of features of a region, and of classes.",
)
@click.option(
    "--part", default="1/1", help="Part to compute, such as 1/8: parts can run at the same time.  [default: all]"
)
def retrieve(
    folder: str,
    out: str,
    images: str | None,
    texts: str | None,
    top: int,
    threshold: float,
    block: int,
    columns: int,
    max_tokens: int,
    detector: tuple[int, int],
    part: str,
) -> None:
    """Retrieve images and texts that are similar to those of a corpus (UNIMO, UNITER).

    For each pair of the corpus in FOLDER: images with similar detections, texts with similar words, and captions of
    other images with nearly the same words. Held-out pairs are compared only with held-out ones. The same command again
    continues an interrupted search.

    \b
      megaptm corpus retrieve corpora/captions --texts corpora/sentences --out corpora/retrieved.safetensors
    """
    from data_pipeline import commands
    from data_pipeline.annotate.retrieve import RetrievalOptions
    from megaptm.report.terminal import TimedLog

    part_index, parts = read_part(part)
    options = RetrievalOptions(
        top=top, threshold=threshold, block=block, columns=columns, max_tokens=max_tokens, detector=detector
    )
    tell = TimedLog(stream=sys.stderr, enabled=sys.stderr.isatty())
    commands.retrieved(folder, out, options, images=images, texts=texts, part=part_index, parts=parts, tell=tell)
