"""Cleaning steps over the texts of images, one text at a time: what they leave out is left out with its image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_pipeline.clean import CleaningStep, run_steps
from data_pipeline.clean.basic import CutLong
from data_pipeline.clean.decontaminate import Decontaminate
from data_pipeline.clean.step import inputs_of
from data_pipeline.corpus.parts import hashes_of
from data_pipeline.document import Document, Dropped
from data_pipeline.recipe import plain_step
from megaptm.errors import UserError


class RefusedText(Exception):  # noqa: N818  # no end, a reason
    """Why a text is left out, with its image."""

    def __init__(self, reason: str, text: str = "", said: str = "") -> None:
        super().__init__(reason)
        self.reason, self.text, self.said = reason, text, said


@dataclass(frozen=True)
class TextSteps:
    """What a worker is told of steps."""

    steps: tuple[CleaningStep, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    """Files that they read: path, sha256."""

    @classmethod
    def of(cls, steps: Sequence[CleaningStep]) -> TextSteps:
        return cls(tuple(steps), hashes_of(path for step in steps for path in inputs_of(step)))

    def text(self, text: str, source: str) -> str:
        """What they make of a text; `RefusedText` where that is nothing."""
        if not self.steps:
            return text
        dropped = Dropped()
        kept = [*run_steps(self.steps, [Document(text, source)], dropped, "skip")]
        if len(kept) > 1:
            raise UserError(f"steps made {len(kept)} texts of that of {source}, and an image has one: mend them.")
        if any(not isinstance(one, Document) or not isinstance(one.text, str) for one in kept):
            raise UserError(f"steps made of the text of {source} what is no `Document` with a text: mend them.")
        for reason in dropped.counts:
            raise RefusedText(reason, text, dropped.said.get(reason, ""))
        # As before them: spaces and lines are one space each.
        if not kept or not (found := " ".join(kept[0].text.split())):
            raise RefusedText("image without text", text)
        return found


NONE = TextSteps()
"""Texts stay as they are."""


def check_text_steps(steps: Sequence[CleaningStep]) -> None:
    """Raise where a step makes several texts of one."""
    for step in steps:
        cuts = isinstance(step, CutLong) or (isinstance(step, Decontaminate) and step.cut)
        if cuts or hasattr(step, "labels"):
            [name] = plain_step(step)
            raise UserError(f"step {name} may make several texts of one, and an image has one: remove it.")
