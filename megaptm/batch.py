"""Fields of a batch: the contract between objectives, which make samples, and models, data loaders and losses. No
torch."""

# S tokens of a sequence, K target positions

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

MicroBatch = dict[str, "Tensor"]
"""Type of a micro-batch: fields of its samples, [B, ...], by name, as `BatchSpec` describes."""
IGNORED = -100
"""Label of a position that enters no loss (torch's default)."""
INPUT_FIELDS = (
    *(
        "tokens",
        "segments",
        "positions",
        "document_ids",
        "order",
        "global_tokens",
        "masked_positions",
        "uniforms",
        "reset_state",
        "backward",
    ),
    *("span_left", "span_right", "span_offset"),
)
"""Fields that models read, without the prefix of a stream, in addition to those with `BatchField.is_input`. All other
fields are labels."""


@dataclass(frozen=True)
class BatchField:
    """Shape and dtype of one array of a sample; a micro-batch stacks the arrays of its samples."""

    shape: tuple[int, ...]
    dtype: str = "int64"
    is_input: bool = False
    """Whether an input of some families reads it (`InputSpec.fields`). Then it is no label."""
    is_appended: bool = False
    """Whether the field has an entry for each position that follows the text (`InputSpec.is_appended`)."""


@dataclass(frozen=True)
class BatchSpec:
    """Fields of every sample of an objective, and the lengths of its streams.

    A stream is the input of one stack: `tokens`, and `characters` [S, C] if words are read by their characters. An
    objective may add, each [S]: `positions`, `document_ids` (0: padding), `segments`, `order`, and `global_tokens` (1:
    attends to all of its document, and all of it attends to this token).

    Fields with `BatchField.is_input` belong to an input of some families (`InputSpec.fields`), such as the pixels of an
    image; `tokens` then holds the kind of each position. The positions of a text may be followed by R others
    (`BatchField.is_appended`), at which `tokens` holds their kinds.

    Fields of the first stack have no prefix; those of another stack have its name: `decoder_tokens`. `task_ids` [] is
    the task of a sample. If sequences continue from step to step, `reset_state` [] is 1 for a sequence that continues
    no other; `backward` [] is 1 for one that is read from its end.
    """

    streams: Mapping[str, int]
    """Sequence length S of each stream, by the prefix of its fields: `""`, `decoder_` ..."""
    fields: Mapping[str, BatchField]

    @property
    def needs_attention_mask(self) -> bool:
        """Whether a sequence may hold several documents or padding; attention then takes a mask."""
        return any(f"{prefix}{name}" in self.fields for prefix in self.streams for name in ("document_ids", "order"))

    @property
    def has_global_tokens(self) -> bool:
        """Whether the samples of the batch have global tokens, which attend to all tokens and are attended by all."""
        return any(f"{prefix}global_tokens" in self.fields for prefix in self.streams)

    @property
    def num_predicted(self) -> int | None:
        """Return K, the number of predicted positions of a sample, for objectives that predict some; None if they
        predict all."""
        return self.fields["masked_positions"].shape[0] if "masked_positions" in self.fields else None

    @property
    def num_appended(self) -> int:
        """Return R, the number of positions that a batch adds after each text, such as image regions."""
        return max((field.shape[0] for field in self.fields.values() if field.is_appended), default=0)

    @property
    def special_inputs(self) -> set[str]:
        """Return the names of batch fields with `BatchField.is_input`, without the prefix of a stream."""
        names = (self._parse_name(name)[1] for name, field in self.fields.items() if field.is_input)
        return {name for name in names if name is not None}

    @property
    def label_names(self) -> list[str]:
        """Return the names of the batch fields that are labels."""
        return [name for name in self.fields if self._parse_name(name)[1] is None]

    def with_labels(self, names: Collection[str]) -> BatchSpec:
        """Return a batch specification with the same inputs whose only labels are `names`."""
        dropped = {*self.label_names} - {*names}
        return BatchSpec(self.streams, {name: field for name, field in self.fields.items() if name not in dropped})

    def lengths(self, prefixes: Mapping[str, str]) -> dict[str, int]:
        """Return the sequence length of each stack in the batch; `prefixes` are the family's."""
        return {stack: self.streams[prefix] for stack, prefix in prefixes.items()}

    def pad_sample(self, sample: Mapping[str, np.ndarray], *, pad: int | None) -> dict[str, np.ndarray]:
        """Pad a sample with fewer or shorter fields to this batch specification; labels are padded with `IGNORED`."""
        padded = {}
        for name, field in self.fields.items():
            prefix, stem = self._parse_name(name)
            if stem == "document_ids" and name not in sample and f"{prefix}tokens" in sample:
                # Without document ids the sequence is one document; its padding belongs to none.
                own = np.ones(sample[f"{prefix}tokens"].shape, field.dtype)
                padded[name] = _pad_field(stem, own, field, pad)
            else:
                padded[name] = _pad_field(stem, sample.get(name), field, pad)
        return padded

    def _parse_name(self, field: str) -> tuple[str, str | None]:
        """Return the prefix of a batch field's stream and its name without; None for the name of a label."""
        stems = ((prefix, field.removeprefix(prefix)) for prefix in self.streams if field.startswith(prefix))
        if self.fields[field].is_input:
            return max(stems, key=lambda stem: len(stem[0]))
        return next(((prefix, stem) for prefix, stem in stems if stem in INPUT_FIELDS), ("", None))

    def check(self, sample: Mapping[str, np.ndarray], *, maker: str) -> None:
        """Raise TypeError if a sample does not match this batch specification."""
        # Every sample is checked here: the valid case takes a microsecond.
        if type(sample) is dict and sample.keys() == self.fields.keys():
            for name, shape, dtype in self._expected:
                array = sample[name]
                if not isinstance(array, _ARRAYS) or array.shape != shape or array.dtype != dtype:
                    break
            else:
                return
        raise TypeError(f"{maker} {self._describe_difference(sample)}")

    @cached_property
    def _expected(self) -> list[tuple[str, tuple[int, ...], np.dtype]]:
        return [(name, field.shape, np.dtype(field.dtype)) for name, field in self.fields.items()]

    def _describe_difference(self, sample: object) -> str:
        """Describe the difference between a sample and this batch specification, in the alphabetically first field that
        differs."""
        if not isinstance(sample, dict):
            return f"returned {_describe_type(sample)}, not a dict of arrays"
        actual = {str(name): _describe_type(array) for name, array in sample.items()}
        expected = {name: f"{field.dtype} {[*field.shape]}" for name, field in self.fields.items()}
        name = min((name for name in {*actual, *expected} if actual.get(name) != expected.get(name)), default="")
        if name not in actual:
            return f"returned no {name}, but its batch specification has {name} as {expected[name]}"
        if name not in expected:
            return f"returned {name}, which its batch specification lacks"
        return f"returned {name} as {actual[name]}, but its batch specification has {expected[name]}"


_ARRAYS = (np.ndarray, np.generic)


def _describe_type(value: object) -> str:
    """Describe the type of a value in a sample for an error: dtype and shape of an array, otherwise the class."""
    return f"{value.dtype.name} {[*value.shape]}" if isinstance(value, _ARRAYS) else f"a {type(value).__name__}"


def batch_fields(shape: tuple[int, ...], *names: str) -> dict[str, BatchField]:
    """Return int64 batch fields with this shape of a sample (a batch adds B in front)."""
    return dict.fromkeys(names, BatchField(shape))


def _pad_field(stem: str | None, array: np.ndarray | None, field: BatchField, pad: int | None) -> np.ndarray:
    if array is None:
        if stem == "positions":
            return np.arange(field.shape[0], dtype=field.dtype)
        return np.full(field.shape, IGNORED if stem is None else 0, field.dtype)
    if array.shape == field.shape:
        return array
    padded = np.full(field.shape, IGNORED if stem is None else (pad or 0) if stem == "tokens" else 0, field.dtype)
    padded[: len(array)] = array
    return padded
