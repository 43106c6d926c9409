"""Cleaning steps for the texts of images, one text at a time. An image is dropped with its text."""

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
    """Raised with the reason why a text is dropped with its image."""

    def __init__(self, reason: str, text: str = "", said: str = "") -> None:
        super().__init__(reason)
        self.reason, self.text, self.said = reason, text, said


@dataclass(frozen=True)
class TextSteps:
    """Cleaning steps, in the form that workers need."""

    steps: tuple[CleaningStep, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    """(path, sha256) of files that the steps read."""

    @classmethod
    def of(cls, steps: Sequence[CleaningStep]) -> TextSteps:
        return cls(tuple(steps), hashes_of(path for step in steps for path in inputs_of(step)))

    def text(self, text: str, source: str) -> str:
        """Return the cleaned text; raise `RefusedText` if it is dropped."""
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
        # Reduce white space to single spaces, as before the steps.
        if not kept or not (found := " ".join(kept[0].text.split())):
            raise RefusedText("image without text", text)
        return found


NONE = TextSteps()
"""No steps."""


def check_text_steps(steps: Sequence[CleaningStep]) -> None:
    """Raise `UserError` if a step may make several texts of one."""
    for step in steps:
        cuts = isinstance(step, CutLong) or (isinstance(step, Decontaminate) and step.cut)
        if cuts or hasattr(step, "labels"):
            [name] = plain_step(step)
            raise UserError(f"step {name} may make several texts of one, and an image has one: remove it.")
