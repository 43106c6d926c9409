"""Options of `megaptm evaluate` for image-text models, and settings of `megaptm corpus images` for a missing corpus."""

from __future__ import annotations

from collections.abc import Sequence

import click

from megaptm.config import Config, resolve_spec
from megaptm.families.vit.spec import PatchInput
from megaptm.objectives.composed import Task
from megaptm.spec import Family

OPTIONS = {
    "evaluate": (
        click.Option(
            ["--zero-shot"], help="Image-text models: labeled corpus whose images are classified by label names."
        ),
        click.Option(
            ["--template", "templates"],
            multiple=True,
            help="Prompt template for label names; repeat to average several.",
        ),
    )
}


def _pair_arguments(
    config: Config, tasks: Sequence[Task], tokenizer: Sequence[str], source: str | None
) -> list[str] | None:
    """Return the arguments of `megaptm corpus` for a missing corpus of images with texts; None for another model."""
    family = resolve_spec(config).family
    if not isinstance(family, Family) or family.find_input(PatchInput) is None or not family.has_tokens:
        return None
    # These are the defaults for such a corpus.
    defaults = ("tokenizer.kind=", "tokenizer.specials=")
    return [
        "images",
        source or "FOLDER_OF_PAIRS",
        "texts=true",
        *(option for option in tokenizer if not option.startswith(defaults)),
    ]


BUILD_COMMAND = _pair_arguments
