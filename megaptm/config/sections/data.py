"""Section `data`: corpora and their mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, Strict
from pydantic_core import PydanticKnownError

from megaptm.mixture import parse_mix_value, short_names
from megaptm.objectives.objective import SequenceLength
from megaptm.section import Count, Section


def _check_mix_value(value: Any) -> Any:
    """Return the value of a corpus in `data.mix`: a number as float, a table or list as it is."""
    if isinstance(value, dict | list):
        parse_mix_value(value)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticKnownError("float_type")
    if not math.isfinite(value):
        raise PydanticKnownError("finite_number")
    if value <= 0:
        raise PydanticKnownError("greater_than", {"gt": 0.0})
    return float(value)


MixEntry = Annotated[Any, AfterValidator(_check_mix_value)]
"""Weight of a corpus, a `mixture.MixPart` as a table, or a list of such tables."""


class CursorsConfig(Section):
    """Read position of each corpus at which a run continues after a change of its data. Written by `megaptm train`."""

    step: Annotated[int, Field(ge=0)]
    """Step at which the data were changed."""
    sample: Annotated[int, Field(ge=0)]
    """Index of the first sample after the change."""
    read: dict[str, Annotated[tuple[Annotated[int, Field(ge=0)], Count], Strict(False)]] = {}
    """Id of a corpus, and task if there are several -> samples that were read, and samples of an epoch at that time."""


class MixRampConfig(Section):
    """Linear change of the weights of `data.mix`, in a hundred equal stages."""

    initial: Annotated[dict[str, Annotated[float, Field(ge=0.0)]], Field(min_length=1)]
    """Weights of corpora of data.mix before the change; an absent corpus has weight 0."""
    steps: Annotated[tuple[Annotated[int, Field(ge=0)], Count], Strict(False)] | None = None
    """Steps at which the change begins and ends. Default: first and last step of the phase, or of the run."""


class ValidationConfig(Section):
    """Named validation set: a corpus that is validated separately."""

    corpus: str
    """Folder or URL of the corpus. It need not be in data.mix, but has the same tokenizer."""
    split: Literal["train", "validation"] = "validation"
    """Split of the corpus that is read. train: for a corpus that is held out as a whole, built with validation=0."""
    batches: Count | None = None
    """Number of batches. Default: train.validate_batches."""
    every: Count | None = None
    """Steps between two measurements of this set, a multiple of train.validate_every; it is also measured after the
    last step of a phase. Default: train.validate_every."""


class ValidationSet(NamedTuple):
    """Samples of a named validation set."""

    mix: Mapping[str, Any]
    split: str = "validation"
    batches: int | None = None
    every: int | None = None

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether the set is measured in the validation after a step. `last`: last step of the phase."""
        return self.every is None or step % self.every == 0 or step == last


class DataConfig(Section):
    """Training data of a run."""

    mix: Annotated[dict[str, MixEntry], Field(min_length=1)]
    """Corpora, as folders or URLs, with their weights. Weights count tokens and need not sum to one. Instead of a
    weight: a table of `weight`, `quality`, `domains` and `max_epochs`, or a list of them."""
    size_exponent: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Exponent of a corpus's number of documents, which multiplies its weight; weights then count documents. 1:
    proportional to size (T5); else 1 / temperature, such as mT5's 0.3. Default: weights count tokens, independent of
    size."""
    size_limits: dict[str, Count] = {}
    """Maximum number of documents that size_exponent uses, by corpus (T5's artificial limit)."""
    mix_ramp: MixRampConfig | None = None
    """Weights that move linearly to those of data.mix (docs/recipes.md). Default: they are constant."""
    validation: dict[str, ValidationConfig] = {}
    """Validation sets besides the mix: `{news: {corpus: corpora/news}}` is measured as `validation/news/loss`
    (docs/configs.md)."""
    validate_each: bool = False
    """Whether each corpus of the mix is also validated separately, as `validation/NAME/loss` with the last part of its
    path."""
    sequence: SequenceLength
    """Number of tokens of one sequence (T5: of the encoder's sequence)."""
    epochs: Count | None = None
    """Maximum number of times that any text is read; a run with too many steps is rejected at the start. Default: no
    limit."""
    dupe_factor: Count | None = None
    """Epochs after which the same sequences repeat with the same noise: 1 for static masks, 10 for BERT's data, which
    were written in ten copies. Default: each epoch has its own order and noise (RoBERTa's dynamic masks)."""
    document_mask: bool = True
    """Whether attention is restricted to the documents of a packed sequence. Default: true, unless sequences continue
    from step to step."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 1
    """Number of worker processes that prepare samples, per rank that reads data; 0: the training process prepares
    them."""
    verify: Literal["hash", "size", "none"] = "hash"
    """Check of a shard against the manifest at the first read: every byte (a second per GB, by one process of the run),
    its size, or none."""
    cache_dir: str | None = None
    """Local folder for shards of corpora at URLs. Default: ~/.cache/megaptm, or, without a home folder,
    $TMPDIR/megaptm-UID."""
    max_cache_bytes: Count = 64 << 30
    """Maximum bytes of the cache; the least recently used shards are removed."""
    cursors: CursorsConfig | None = None
    """Read position at the last change of the data on resume, written by `megaptm train`. Default: the data were the
    same from the start."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=1500.0)] = 600.0
    """Seconds to wait for a server that does not respond, before the run saves and stops. Must be less than 30 minutes,
    the timeout between ranks."""

    @property
    def validation_sets(self) -> dict[str, ValidationSet]:
        """Return the validation sets of the run by name, without that of the whole mix. A named one replaces that of a
        corpus of the mix with the same name."""
        each = short_names([*self.mix]) if self.validate_each else {}
        named = {
            name: ValidationSet({own.corpus: 1.0}, own.split, own.batches, own.every)
            for name, own in self.validation.items()
        }
        return {name: ValidationSet({path: self.mix[path]}) for path, name in each.items()} | named

    @property
    def corpora(self) -> list[str]:
        """Return the corpora that the run reads: first the corpora of the mix, then corpora that are only validated."""
        return [*dict.fromkeys([*self.mix, *(own.corpus for own in self.validation.values())])]
