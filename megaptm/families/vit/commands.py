"""`megaptm corpus images`, and its settings for a missing corpus of a run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from megaptm.config import Config, resolve_spec
from megaptm.families.vit.spec import PatchInput
from megaptm.objectives.composed import Task
from megaptm.spec import Family


@click.command("images")
@click.argument("words", nargs=-1, required=True, metavar="SOURCE out=FOLDER [KEY=VALUE]...")
def images_command(words: tuple[str, ...]) -> None:
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
    from megaptm.families.vit.corpus.build import build_image_corpus as build

    build(words)


def _labeled_arguments(
    config: Config, tasks: Sequence[Task], tokenizer: Sequence[str], source: str | None
) -> list[str] | None:
    """Return the arguments of `megaptm corpus` for a missing corpus of images with labels; None for another model."""
    family = resolve_spec(config).family
    if not isinstance(family, Family) or family.find_input(PatchInput) is None or family.has_tokens:
        return None
    return ["images", source or "FOLDER_OF_LABELS"]


COMMANDS = {"corpus": (images_command,)}
BUILD_COMMAND = _labeled_arguments
