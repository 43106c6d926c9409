"""Display of image samples by `megaptm corpus inspect`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.text import Text

from data_pipeline.inspection import LABEL_STYLE
from megaptm.batch import BatchSpec
from megaptm.families.vit.spec import MASKED_PATCH
from megaptm.tokenizers import Tokenizer


def _show_image(sample: Mapping[str, np.ndarray], batch: BatchSpec, tokenizer: Tokenizer) -> Text | None:
    """Describe an image sample: number of patches, hidden patches, and the label or the colors."""
    if "patches" not in sample:
        return None
    hidden = int((sample["tokens"] == MASKED_PATCH).sum())
    text = Text(f"{len(sample['patches'])} patches of {sample['patches'].shape[1]} values, {hidden} hidden")
    text.append("\n\nlabel: " if "text_tokens" not in sample else "\n\ntext: ")
    if "text_tokens" in sample:
        text.append(tokenizer.decode(sample["text_tokens"][1 : int(sample["text_end"])]), LABEL_STYLE)
    elif "image_label" in sample:
        text.append(tokenizer.name(int(sample["image_label"])), LABEL_STYLE)
    else:
        text.append(" ".join(f"{color:03o}" for color in sample["patch_colors"].tolist()), LABEL_STYLE)
    return text


SHOW_SAMPLE = _show_image
