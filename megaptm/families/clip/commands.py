"""Options of `megaptm evaluate` for image-text models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from megaptm.errors import UserError

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


EVALUATE = zero_shot
