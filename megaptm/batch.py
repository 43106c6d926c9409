"""What a batch holds: the one contract between objectives, which make samples, and all who read them. No torch."""

# S tokens of a row, K predicted positions

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

MicroBatch = dict[str, "Tensor"]
"""Field -> [B, ...] of some samples, as `BatchSpec` says."""
CHARACTERS = 262
"""Ids of characters: 0 stands behind a text, then bytes, and five that mark where words and texts begin and end."""
LONGEST_WORD = 50
"""Characters of a word, its marks among them; a longer one is cut."""
IMAGE, PATCH, MASKED_PATCH = range(3)
"""What stands at a place of an image's row, in the place of a token: the image as a whole, which comes first; a patch;
one that is not shown."""
REGION, MASKED_REGION = 0, 1
"""The same behind a text, of regions of an image: one that is shown, and one that is hidden."""
BOX_NUMBERS = 7
"""Of where a region lies, shares of the image's sides: left, top, right, bottom, width, height; and of its area."""
COMPARED_TEXTS = 8
"""Texts of a row, at most, that its image is compared with (UNIMO): its caption, what was made of it, and what was
retrieved for it."""
COMPARED_IMAGES = 4
"""The same of images that its caption is compared with: its own, and what was retrieved for it."""
CHANNELS = 3
"""Of a pixel: red, green, blue."""
IGNORED = -100
"""The label of a position that no loss asks about (torch's default)."""
READ = (
    *(
        "tokens",
        "characters",
        "patches",
        "region_features",
        "region_boxes",
        "segments",
        "task_ids",
        "positions",
        "document_ids",
        "order",
        "global_tokens",
        "masked_positions",
        "draws",
        "begins",
        "backward",
    ),
    *("span_left", "span_right", "span_offset"),
)
"""Fields, but for a stream's prefix, that a model reads; the others say what is asked."""


@dataclass(frozen=True)
class Field:
    """One array of every sample; a micro-batch has rows of it."""

    shape: tuple[int, ...]
    dtype: str = "int64"


@dataclass(frozen=True)
class BatchSpec:
    """The fields of every sample of an objective, and the streams that they are laid along.

    A stream is what one stack reads: `tokens`, with `characters` [S, C] where words are read by these, and where
    the objective gives them `positions`, `document_ids` (0 is
    padding), `segments`, `order`, `global_tokens` (1: all of its document sees it and is seen by it), each [S].
    Of an image `tokens` say what stands where (`IMAGE`, `PATCH` ...), and `patches`, uint8 [S - 1, channels x pixels],
    what the patches look like, row by row of the image: of each all that is red, row by row, then green, then blue.
    Behind a text's places may be those of R regions of an image, `region_features` [R, F] and `region_boxes` [R, 7] of
    them; `tokens` then say which is hidden (`REGION`, `MASKED_REGION`).
    The first stack's have no prefix, another's that of its name: `decoder_tokens`. A row is of one task, `task_ids` [].
    Where rows go on from step to step, `begins` [] is 1 of one that follows none; `backward` [] is 1 of one that is
    read from its end.
    """

    streams: Mapping[str, int]
    """Prefix -> S: `""`, `decoder_` ..."""
    fields: Mapping[str, Field]

    @property
    def masked(self) -> bool:
        """Whether some rows are more than one document, or padded: attention then takes a mask."""
        return any(f"{prefix}{name}" in self.fields for prefix in self.streams for name in ("document_ids", "order"))

    @property
    def marks(self) -> bool:
        """Whether some tokens see, and are seen by, all."""
        return any(f"{prefix}global_tokens" in self.fields for prefix in self.streams)

    @property
    def num_predicted(self) -> int | None:
        """K of objectives that predict some positions; None where they predict all."""
        return self.fields["masked_positions"].shape[0] if "masked_positions" in self.fields else None

    @property
    def regions(self) -> int:
        """R, places of regions of an image behind a text."""
        return self.fields["region_features"].shape[0] if "region_features" in self.fields else 0

    @property
    def answers(self) -> list[str]:
        """Fields that say what is asked."""
        return [name for name in self.fields if self._read_as(name)[1] is None]

    def asking(self, answers: Collection[str]) -> BatchSpec:
        """A batch with the same streams, whose fields that ask are `answers` alone."""
        left_out = {*self.answers} - {*answers}
        return BatchSpec(self.streams, {name: field for name, field in self.fields.items() if name not in left_out})

    def lengths(self, prefixes: Mapping[str, str]) -> dict[str, int]:
        """Stack -> tokens of a row of it; `prefixes` are the family's."""
        return {stack: self.streams[prefix] for stack, prefix in prefixes.items()}

    def widened(self, sample: Mapping[str, np.ndarray], *, pad: int | None) -> dict[str, np.ndarray]:
        """A sample with fewer or shorter fields as this says: with padding behind, and nothing asked where it asks
        nothing."""
        made = {}
        for name, field in self.fields.items():
            prefix, stem = self._read_as(name)
            if stem == "document_ids" and name not in sample and f"{prefix}tokens" in sample:
                # Without them the row is one document; what is behind it is none.
                own = np.ones(sample[f"{prefix}tokens"].shape, field.dtype)
                made[name] = _widened(stem, own, field, pad)
            else:
                made[name] = _widened(stem, sample.get(name), field, pad)
        return made

    def _read_as(self, field: str) -> tuple[str, str | None]:
        """Of which stream a field is, by its prefix, and which of `READ`; None of one that says what is asked."""
        stems = ((prefix, field.removeprefix(prefix)) for prefix in self.streams if field.startswith(prefix))
        return next(((prefix, stem) for prefix, stem in stems if stem in READ), ("", None))

    def check(self, sample: Mapping[str, np.ndarray], *, maker: str) -> None:
        """A `TypeError` where a sample is not what was said of it."""
        # Every sample passes here: what is as it should be costs a microsecond.
        if type(sample) is dict and sample.keys() == self.fields.keys():
            for name, shape, dtype in self._wanted:
                array = sample[name]
                if not isinstance(array, _ARRAYS) or array.shape != shape or array.dtype != dtype:
                    break
            else:
                return
        raise TypeError(f"{maker} {self._difference(sample)}")

    @cached_property
    def _wanted(self) -> list[tuple[str, tuple[int, ...], np.dtype]]:
        return [(name, field.shape, np.dtype(field.dtype)) for name, field in self.fields.items()]

    def _difference(self, sample: object) -> str:
        """What is wrong with a sample: of the first field by the alphabet."""
        if not isinstance(sample, dict):
            return f"made {_kind(sample)} and not a dict of arrays"
        found = {str(name): _kind(array) for name, array in sample.items()}
        said = {name: f"{field.dtype} {[*field.shape]}" for name, field in self.fields.items()}
        wrong = min((name for name in {*found, *said} if found.get(name) != said.get(name)), default="")
        if wrong not in found:
            return f"made no {wrong}, and says that it is {said[wrong]}"
        if wrong not in said:
            return f"made {wrong}, of which it says nothing"
        return f"made {wrong} as {found[wrong]}, and says that it is {said[wrong]}"


_ARRAYS = (np.ndarray, np.generic)


def _kind(value: object) -> str:
    """What a value is, in words."""
    return f"{value.dtype.name} {[*value.shape]}" if isinstance(value, _ARRAYS) else f"a {type(value).__name__}"


def fields(shape: tuple[int, ...], *names: str) -> dict[str, Field]:
    """Several int64 fields, each of this shape in a sample (a batch puts B before it)."""
    return dict.fromkeys(names, Field(shape))


def _widened(stem: str | None, array: np.ndarray | None, field: Field, pad: int | None) -> np.ndarray:
    if array is None:
        if stem == "positions":
            return np.arange(field.shape[0], dtype=field.dtype)
        return np.full(field.shape, IGNORED if stem is None else 0, field.dtype)
    if array.shape == field.shape:
        return array
    wide = np.full(field.shape, IGNORED if stem is None else (pad or 0) if stem == "tokens" else 0, field.dtype)
    wide[: len(array)] = array
    return wide
