"""`megaptm corpus retrieve`."""

from __future__ import annotations

import sys

import click

from megaptm.commands.options import Finite, read_part


@click.command()
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
    from megaptm.families.uniter.corpus.retrieve import RetrievalOptions, retrieved
    from megaptm.report.terminal import TimedLog

    part_index, parts = read_part(part)
    options = RetrievalOptions(
        top=top, threshold=threshold, block=block, columns=columns, max_tokens=max_tokens, detector=detector
    )
    tell = TimedLog(stream=sys.stderr, enabled=sys.stderr.isatty())
    retrieved(folder, out, options, images=images, texts=texts, part=part_index, parts=parts, tell=tell)


CORPUS = retrieve
