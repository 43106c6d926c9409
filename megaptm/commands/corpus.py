"""`megaptm corpus`: from text or images to shards, and looking at what is in them."""

from __future__ import annotations

import sys

import click

from megaptm.commands.options import Finite, read_part


@click.group()
def corpus() -> None:
    """Build corpora from text or images, look into them, check them.

    \b
      megaptm corpus build 'books/**/*.txt' out=corpora/books tokenizer.vocabulary=4096
      megaptm corpus images photos/ out=corpora/photos
      megaptm corpus inspect corpora/books
      megaptm corpus verify corpora/books
    """


def _settings(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Return the settings of a build that a shell completes."""
    from data_pipeline.commands import build_settings

    return [f"{name}=" for name in build_settings() if name.startswith(begun)]


@corpus.command()
@click.argument(
    "words", nargs=-1, required=True, metavar="SOURCE... out=PLACE [key=value ...]", shell_complete=_settings
)
def build(words: tuple[str, ...]) -> None:
    """Turn text into a corpus: clean, deduplicate, train a tokenizer, write shards.

    A SOURCE is a file, a folder, a quoted glob, a URL, or `python-library`, text that every machine has. Instead of
    sources, one recipe (a .yaml) can say everything; `key=value` changes it.

    \b
      megaptm corpus build python-library out=corpora/python tokenizer.vocabulary=4096
      megaptm corpus build 'books/**/*.txt' notes.jsonl out=corpora/books tokenizer.kind=wordpiece
      megaptm corpus build more/ out=corpora/more tokenizer=corpora/books/tokenizer
      megaptm corpus build data 'reviews*.jsonl:text=content' out=corpora/reviews
      megaptm corpus build configs/corpora/web.yaml out=s3://bucket/web workers=16

    \b
    GLOB:KEY=VALUE   a setting for the files whose names match, such as text, format, encoding
    out          folder or URL of the corpus; it appears when it is complete. A build that was killed goes on where it
                 was when the same command is given again.
    workers      Ray workers; 0: this process alone; by default as the input asks for
    overwrite    true: replace the corpus that is there
    scratch      folder of unfinished work, which all machines of a Ray cluster must share
    tokenizer    folder of a tokenizer to use; or tokenizer.kind, tokenizer.vocabulary ... of one to train
    validation   share of the documents held out; 0.02 by default
    limit_bytes  keep a sample of about this much text
    seed, shard_bytes, on_error, deduplicate, steps ...: docs/corpus.md has them all
    """
    from data_pipeline import commands

    commands.build(words)


@corpus.command()
@click.argument("words", nargs=-1, required=True, metavar="SOURCE out=PLACE [key=value ...]")
def images(words: tuple[str, ...]) -> None:
    """Turn images into a corpus: look at each, leave out what nobody can learn from, write shards.

    SOURCE is a folder with a folder of images for each label; or one with webdataset shards (.tar), here or at
    s3://, which stay as they are and get an index; or `digits`, the small images that scikit-learn brings, or `shapes`,
    drawn ones. With texts=true each image has a text in the place of a label: beside it, 0001.txt or 0001.json, or in
    the shard.

    \b
      megaptm corpus images digits out=corpora/digits validation=0.1
      megaptm corpus images photos/ out=corpora/photos workers=16
      megaptm corpus images imagenet/train out=corpora/imagenet held_out=imagenet/val
      megaptm corpus images shards/ out=corpora/imagenet classes=names.txt check=header
      megaptm corpus images laion/ out=corpora/laion texts=true tokenizer=corpora/captions/tokenizer
      megaptm corpus images s3://bucket/laion out=s3://bucket/laion-corpus texts=true 'steps=[drop-short: {words: 3}]'

    \b
    out, workers, overwrite, scratch   as `megaptm corpus build` has them
    validation   share of the images held out, or of given shards; 0.02 by default
    held_out     folder of what is held out, in the place of a share
    classes      of given shards: text file with a name for each label; label: the field of .json that has it
    texts        true: images with texts; text: the field of .json that has it; max_tokens: tokens of one, at most
    steps        what is done with each text, and which are left out: those of `megaptm corpus build`
    regions      true: texts with files of what a detector found (.npz) in the place of images; detector: its numbers
    tokenizer    of texts: folder of a tokenizer to use; or tokenizer.vocabulary ... of one to train
    min_side, max_pixels, max_aspect_ratio   which images are kept; check=header does not decode them
    seed, shard_bytes ...: docs/images.md has them all
    """
    from data_pipeline import commands

    commands.images(words)


@corpus.command()
@click.argument("folder")
@click.option("--objective", help="Also show what this pre-training task would hide, show and ask.")
@click.option("--count", type=int, default=3, show_default=True, help="Texts to show.")
@click.option("--sequence", type=int, default=128, show_default=True, help="Tokens in a row of the objective.")
@click.option("--split", default="train", show_default=True)
def inspect(folder: str, objective: str | None, count: int, sequence: int, split: str) -> None:
    """Show what a corpus holds, and what a model would see of it.

    \b
      megaptm corpus inspect corpora/books
      megaptm corpus inspect corpora/books --objective span-corruption --count 5
    """
    from data_pipeline import commands

    commands.inspect(folder, objective=objective, count=count, sequence=sequence, split=split)


@corpus.command()
@click.argument("folder")
def verify(folder: str) -> None:
    """Compare every file of a corpus with its manifest; exit code 1 if one differs.

    \b
      megaptm corpus verify corpora/books
    """
    from data_pipeline import commands

    sys.exit(0 if commands.verify(folder) else 1)


@corpus.command("similar-words")
@click.argument("source")
@click.option("--tokenizer", required=True, help="Folder of the tokenizer that the corpus is made with.")
@click.option("--out", required=True, help="File for `similar` of an objective.")
@click.option("--vectors", is_flag=True, help="SOURCE has word vectors, a word and its numbers a line.")
@click.option("--most", type=click.IntRange(1), default=10, show_default=True, help="Similar words of one, by vectors.")
def similar_words(source: str, tokenizer: str, out: str, vectors: bool, most: int) -> None:
    """Say which words are like another, for masks that show such a word (MacBERT).

    SOURCE has lines of word<TAB>similar similar ..., or with --vectors the vectors of words, as word2vec and GloVe
    write them. A word is replaced by one of as many tokens: others are left out.

    \b
      megaptm corpus similar-words similar.tsv --tokenizer corpora/chinese/tokenizer --out corpora/similar.npz
      megaptm corpus similar-words vectors.txt --vectors --tokenizer corpora/chinese/tokenizer --out corpora/similar.npz
    """
    from data_pipeline import commands

    commands.similar_words(source, tokenizer, out, vectors=vectors, most=most)


@corpus.command()
@click.argument("source")
@click.option("--tokenizer", required=True, help="Folder of the tokenizer that the corpus is made with.")
@click.option("--out", required=True, help="File for `meanings` of an objective.")
def meanings(source: str, tokenizer: str, out: str) -> None:
    """Say which phrases of captions mean the same, so that captions are rewritten (UNIMO).

    SOURCE has lines of kind<TAB>phrase<TAB>phrase ..., of one meaning each; kinds are objects, attributes and
    relations. A phrase with another meaning of its kind in its place makes a caption wrong.

    \b
      megaptm corpus meanings phrases.tsv --tokenizer corpora/captions/tokenizer --out corpora/meanings.json
    """
    from data_pipeline import commands

    commands.meanings(source, tokenizer, out)


@corpus.command()
@click.argument("folder")
@click.option("--out", required=True, help="File for `retrieved` of an objective.")
@click.option("--images", help="Corpus of images with regions to look in; by default the same.")
@click.option("--texts", help="Corpus of texts to look in, of short documents; by default none are retrieved.")
@click.option("--top", type=click.IntRange(1, 64), default=4, show_default=True, help="Of each kind, for a document.")
@click.option(
    "--threshold",
    type=Finite(0, 1),
    default=0.3,
    show_default=True,
    help="Similarity below which none is like.",
)
@click.option(
    "--block", type=click.IntRange(2), default=1 << 16, show_default=True, help="Documents compared with each other."
)
@click.option(
    "--columns",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Parts of an image, from left to right, in which the same must be.",
)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens read of a text.")
@click.option(
    "--detector",
    type=click.IntRange(1),
    nargs=2,
    default=(2048, 1601),
    show_default=True,
    help="Numbers of a region's features, and classes.",
)
@click.option("--part", default="1/1", help="One of so many that are looked for at once, as 1/8; all by default.")
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
    """Say which images and texts are like those of a corpus (UNIMO, UNITER).

    For each pair of the corpus in FOLDER: images in which a detector found the same; texts with the same words; and
    captions of other images with nearly the same words. What is held out is looked for among what is held out. Given
    again it goes on where it was stopped.

    \b
      megaptm corpus retrieve corpora/captions --texts corpora/sentences --out corpora/retrieved.safetensors
    """
    from data_pipeline import commands
    from data_pipeline.annotate.retrieve import RetrievalOptions
    from megaptm.report.terminal import TimedLog

    number, parts = read_part(part)
    how = RetrievalOptions(
        top=top, threshold=threshold, block=block, columns=columns, max_tokens=max_tokens, detector=detector
    )
    tell = TimedLog(stream=sys.stderr, enabled=sys.stderr.isatty())
    commands.retrieved(folder, out, how, images=images, texts=texts, part=number - 1, parts=parts, tell=tell)
