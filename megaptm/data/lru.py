"""LRU cache for open shards, windows and epochs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Calls `build` for a key unless it is one of the last `size` keys used. Thread-safe.

    Pickling drops the cached values.
    """

    def __init__(self, build: Callable[[Key], Value], size: int):
        self.build = build
        self.size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._last: tuple[Key, Value] | None = None
        self._lock = Lock()

    def __call__(self, key: Key) -> Value:
        last = self._last
        if last is not None and last[0] == key:  # the common case, without a lock
            return last[1]
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                value = self._values[key]
            else:
                value = self._values[key] = self.build(key)
                if len(self._values) > self.size:
                    self._values.popitem(last=False)
            self._last = (key, value)
            return value

    def __getstate__(self) -> dict[str, Any]:
        return {"build": self.build, "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _values=OrderedDict(), _last=None, _lock=Lock())
