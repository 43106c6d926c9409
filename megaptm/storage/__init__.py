"""Files here and on object stores: one way to read and write them, every call with a deadline, and with patience."""

from megaptm.storage.appearing import Appearing, appeared, sync, write_whole
from megaptm.storage.cache import Cache, default_folder
from megaptm.storage.files import (
    download,
    exists,
    hash_of,
    is_remote,
    join,
    listed,
    local_path,
    read,
    remove,
    size_of,
    upload,
)
from megaptm.storage.patience import Patience
from megaptm.storage.stream import open_remote

__all__ = [
    "Appearing",
    "Cache",
    "Patience",
    "appeared",
    "default_folder",
    "download",
    "exists",
    "hash_of",
    "is_remote",
    "join",
    "listed",
    "local_path",
    "open_remote",
    "read",
    "remove",
    "size_of",
    "sync",
    "upload",
    "write_whole",
]
