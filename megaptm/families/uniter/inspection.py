"""Display of samples of texts and regions by `megaptm corpus inspect`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.text import Text

from data_pipeline.inspection import LABEL_STYLE, show_sample
from megaptm.batch import IGNORED, BatchSpec
from megaptm.families.uniter.spec import MASKED_REGION
from megaptm.tokenizers import Tokenizer


def _show_regions(sample: Mapping[str, np.ndarray], batch: BatchSpec, tokenizer: Tokenizer) -> Text | None:
    """Describe a sample with regions: its text and labels, the number of regions and hidden regions, and region
    labels."""
    if "region_features" not in sample:
        return None
    words = len(sample["tokens"]) - len(sample["region_features"])
    read = {name: sample[name][:words] for name in ("tokens", "document_ids")}
    masked: dict[str, np.ndarray] = {}
    if "labels" in sample:
        masked = {name: sample[name][: len(sample["labels"])] for name in ("masked_positions", "labels")}
    known = {name: field for name, field in batch.fields.items() if name in (*read, *masked)}
    text = show_sample({**read, **masked}, BatchSpec({"": words}, known), tokenizer)
    there = sample["document_ids"][words:] > 0
    hidden = int((sample["tokens"][words:][there] == MASKED_REGION).sum())
    text.append(f"\n\n{int(there.sum())} regions of {sample['region_features'].shape[1]} values, {hidden} hidden")
    if "region_labels" in sample:
        classes = sample["region_labels"][sample["region_labels"] != IGNORED]
        text.append("\n\nregion classes: ").append(" ".join(map(str, classes.tolist())), LABEL_STYLE)
    if "matched" in sample and sample["matched"] != IGNORED:
        text.append("\n\nregions: ").append(("of another text", "of this text")[int(sample["matched"])], LABEL_STYLE)
    return text


SHOW_SAMPLE = _show_regions
