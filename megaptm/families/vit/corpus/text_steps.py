"""Cleaning steps for the texts of images, one text at a time. An image is dropped with its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_pipeline.clean import CleaningStep, run_steps
from data_pipeline.clean.basic import CutLong
from data_pipeline.clean.decontaminate import Decontaminate
from data_pipeline.clean.step import step_input_files
from data_pipeline.corpus.parts import hash_files
from data_pipeline.document import Document, DropCounts
from data_pipeline.recipe import step_for_manifest
from megaptm.errors import UserError


class InvalidTextError(Exception):  # no end, a reason
    """Raised with the reason why a text is dropped with its image."""

    def __init__(self, reason: str, text: str = "", message: str = "") -> None:
        super().__init__(reason)
        self.reason, self.text, self.message = reason, text, message


@dataclass(frozen=True)
class TextSteps:
    """Cleaning steps for the texts of images, in the form that workers need."""

    steps: tuple[CleaningStep, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    """Files that the cleaning steps read, as (path, sha256)."""

    @classmethod
    def from_steps(cls, steps: Sequence[CleaningStep]) -> TextSteps:
        return cls(tuple(steps), hash_files(path for step in steps for path in step_input_files(step)))

    def text(self, text: str, source: str) -> str:
        """Return the cleaned text of an image; raise `InvalidTextError` if it is dropped."""
        if not self.steps:
            return text
        dropped = DropCounts()
        documents = [*run_steps(self.steps, [Document(text, source)], dropped, "skip")]
        if len(documents) > 1:
            raise UserError(
                f"steps split the text of {source} into {len(documents)} texts, but an image has one text: use other "
                "steps."
            )
        if any(not isinstance(document, Document) or not isinstance(document.text, str) for document in documents):
            raise UserError(f"steps did not return a `Document` for the text of {source}: correct them.")
        for reason in dropped.counts:
            raise InvalidTextError(reason, text, dropped.messages.get(reason, ""))
        # Reduce white space to single spaces, as before the steps.
        if not documents or not (cleaned := " ".join(documents[0].text.split())):
            raise InvalidTextError("image without text", text)
        return cleaned


NO_STEPS = TextSteps()
"""Value for image texts that have no cleaning steps."""


def check_text_steps(steps: Sequence[CleaningStep]) -> None:
    """Raise `UserError` if a cleaning step may make several texts of one."""
    for step in steps:
        cuts = isinstance(step, CutLong) or (isinstance(step, Decontaminate) and step.cut)
        if cuts or hasattr(step, "labels"):
            [name] = step_for_manifest(step)
            raise UserError(f"step {name} may make several texts of one, but an image has one text: remove the step.")
