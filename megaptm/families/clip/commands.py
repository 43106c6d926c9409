"""Options of `megaptm evaluate` for image-text models, and settings of `megaptm corpus images` for a missing corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from megaptm.config import Config, resolve
from megaptm.errors import UserError
from megaptm.families.vit.spec import PatchInput
from megaptm.objectives.composed import Task
from megaptm.spec import Family

if TYPE_CHECKING:
    from megaptm.families.clip.inference import ZeroShot
    from megaptm.inference.loaded_model import LoadedModel

EVALUATE_OPTIONS = (
    click.Option(["--zero-shot"], help="Image-text models: labeled corpus whose images are classified by label names."),
    click.Option(
        ["--template", "templates"],
        multiple=True,
        help="Prompt template for label names; repeat to average several.",
    ),
)


def zero_shot(loaded: LoadedModel, rows: int | None, options: Mapping[str, Any]) -> list[ZeroShot]:
    """Return the result of zero-shot classification on the corpus of `--zero-shot`, if there is one."""
    from megaptm.families.clip.inference import TEMPLATES, ImageTextModel

    corpus, templates = options["zero_shot"], options["templates"]
    if not isinstance(loaded, ImageTextModel):
        if corpus or templates:
            raise UserError(
                f"--zero-shot and --template are for models of images and texts, which {loaded.spec.name} is not."
            )
        return []
    return [loaded.zero_shot(corpus=corpus, templates=templates or TEMPLATES, rows=rows)] if corpus else []


def pair_settings(config: Config, tasks: Sequence[Task], tokenizer: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return a placeholder of the source and settings for images with texts; None for another model."""
    family = resolve(config).family
    if not isinstance(family, Family) or family.find_input(PatchInput) is None or not family.has_tokens:
        return None
    # These are the defaults for such a corpus.
    defaults = ("tokenizer.kind=", "tokenizer.specials=")
    return "FOLDER_OF_PAIRS", ["texts=true", *(option for option in tokenizer if not option.startswith(defaults))]


EVALUATE = zero_shot
IMAGE_SETTINGS = pair_settings
