"""Shards of images: `<key>.jpg` and `<key>.cls`, the label index, as in webdataset; with texts `<key>.jpg` and
`<key>.txt`. The tar may be any tar of image files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megaptm.data.shards import TOKENS, TOKENS_AT, Shard, ShardWriter


class ImageShard(Shard, ABC):
    """Image shard whose index has token ids and the locations of files. Base class."""

    ids_in_index = True

    def _index_is_valid(self) -> bool:
        offsets = self.index[:, 2 : 2 * len(self.fields)]
        at, size = offsets[:, 0::2], offsets[:, 1::2]
        return bool(((at >= 0) & (at <= self.content.size) & (size >= 0) & (size <= self.content.size - at)).all())

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        ids = self._ids(document)[start:stop]
        if self.vocabulary is not None:
            self._refuse_unknown_ids(self.vocabulary, ids)
        return ids

    @abstractmethod
    def _ids(self, document: int) -> np.ndarray:
        """Return the token ids of a document of an image shard."""


class LabeledShard(ImageShard):
    """Shard of images with labels in the index."""

    def _index_is_valid(self) -> bool:
        labels = self.index[:, TOKENS_AT]
        return super()._index_is_valid() and not ((labels < 0) | (labels > np.iinfo(self.dtype).max)).any()

    def _ids(self, document: int) -> np.ndarray:
        return self.index[document, TOKENS_AT : TOKENS_AT + 1].astype(self.dtype)


class CaptionedShard(ImageShard):
    """Shard of images with token ids of texts in the index."""

    def _index_is_valid(self) -> bool:
        ids = self.index[:, 2 * len(self.fields) :]
        room = ids.shape[1] * ids.itemsize // self.dtype.itemsize
        return super()._index_is_valid() and not (self.index[:, TOKENS] > room).any()

    def _ids(self, document: int) -> np.ndarray:
        return self.index[document, 2 * len(self.fields) :].view(self.dtype)[: int(self.index[document, TOKENS])]


class LabeledShardWriter(ShardWriter):
    """Writer of a shard of labeled images. The label is written as text, and stored in the index."""

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str]):
        super().__init__(path, "uint32", fields)

    def _append_ids(self, name: str, ids: np.ndarray) -> tuple[int, int]:
        if len(ids) > 1:
            raise ValueError(f"document {name}: it has {len(ids)} labels, but the index holds one per document.")
        return int(ids[0]), 1

    def _append_rest(self, name: str, ids: np.ndarray, meta: Mapping[str, Any] | None) -> None:
        self._append_member(f"{name}.cls", b"%d" % ids[0])
        super()._append_rest(name, ids, meta)
