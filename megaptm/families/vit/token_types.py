"""Types of the ids of images: labels, and token ids of texts. Public shards of images stay unchanged: ids are in the
index."""

from __future__ import annotations

from megaptm.data.token_types import ShardTokenType

LABELS = "labels"
"""Token type of labeled images. A document has one id, its label; the tar has it as text, too (`.cls`, `.json`)."""
IMAGE_LABELS = ShardTokenType(
    pattern=LABELS, ids="uint32", shard="megaptm.families.vit.shards:LabeledShard", noun="image", is_label=True
)
IMAGE_TEXTS = ShardTokenType(
    pattern=r"(?P<ids>uint16|uint32)\[(?P<count>[1-9]\d{0,4})\]",
    shard="megaptm.families.vit.shards:CaptionedShard",
    noun="image",
)
"""Token type of images with texts, `uint16[75]`. The tar has the text (`.txt`, `.json`)."""

TOKEN_TYPES = (IMAGE_LABELS, IMAGE_TEXTS)
