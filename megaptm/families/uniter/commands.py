"""`megaptm corpus retrieve`, and settings of `megaptm corpus images` for a missing corpus of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from megaptm.commands.options import FiniteNumber, read_part
from megaptm.config import Config, resolve_spec
from megaptm.families.uniter import DETECTOR
from megaptm.families.uniter.spec import RegionInput
from megaptm.objectives.composed import Task
from megaptm.spec import ModelSpec


@click.command("retrieve")
@click.argument("folder")
@click.option("--out", required=True, help="Output file, for the objective option `retrieved`.")
@click.option("--images", help="Corpus of images with regions to search.  [default: FOLDER]")
@click.option("--texts", help="Corpus of short documents to search.  [default: retrieve no texts]")
@click.option(
    "--top", type=click.IntRange(1, 64), default=4, show_default=True, help="Results of each kind per document."
)
@click.option("--threshold", type=FiniteNumber(0, 1), default=0.3, show_default=True, help="Minimum similarity.")
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
def retrieve_command(folder: str, out: str, images: str | None, texts: str | None, part: str, **options: Any) -> None:
    """Retrieve images and texts that are similar to those of a corpus (UNIMO, UNITER).

    For each pair of the corpus in FOLDER: images with similar detections, texts with similar words, and captions of
    other images with nearly the same words. Held-out pairs are compared only with held-out ones. The same command again
    continues an interrupted search.

    \b
      megaptm corpus retrieve corpora/captions --texts corpora/sentences --out corpora/retrieved.safetensors
    """
    from megaptm.families.uniter.corpus.retrieve import RetrievalOptions, retrieve_documents
    from megaptm.report.terminal import TimedLog

    part_index, parts = read_part(part)
    tell = TimedLog(stream=sys.stderr, enabled=sys.stderr.isatty())
    criteria = RetrievalOptions(**options)
    retrieve_documents(folder, out, criteria, images=images, texts=texts, part=part_index, parts=parts, tell=tell)


def _region_arguments(
    config: Config, tasks: Sequence[Task], tokenizer: Sequence[str], source: str | None
) -> list[str] | None:
    """Return the arguments of `megaptm corpus` for a missing corpus of texts with regions; None for another model, and
    for tasks that read only text."""
    spec = resolve_spec(config)
    if not isinstance(spec, ModelSpec) or spec.family.find_input(RegionInput) is None:
        return None
    if not any(task.objective.blobs for task in tasks):
        return None
    # The default for such a corpus.
    settings = [option for option in tokenizer if option != "tokenizer.kind=wordpiece"]
    detector = spec.size.inputs.get("detector", DETECTOR)
    settings += [] if detector == DETECTOR else [f"detector={[*detector]}"]
    return ["images", source or "FOLDER_OF_PAIRS", "texts=true", "regions=true", *settings]


COMMANDS = {"corpus": (retrieve_command,)}
BUILD_COMMAND = _region_arguments
