"""Files on disk and on object stores behind one interface. Every remote call has a deadline and is retried."""

from megaptm.errors import shown
from megaptm.storage.atomic_file import AtomicFile, appeared, sync, write_whole
from megaptm.storage.cache import Cache, default_folder
from megaptm.storage.files import (
    download,
    exists,
    hash_of,
    is_remote,
    join,
    listed,
    local_path,
    plain_file,
    read,
    refuse_large,
    remove,
    size_of,
    upload,
    writable_path,
)
from megaptm.storage.halves import is_rest, writing_in
from megaptm.storage.journal import JournalFile, is_not_finite, is_number, journal_lines, now
from megaptm.storage.own_files import open_own, refuse_link
from megaptm.storage.remote import PROTOCOLS
from megaptm.storage.retry import RetryPolicy
from megaptm.storage.stream import open_remote
from megaptm.storage.untrusted import (
    FileName,
    Record,
    file_name,
    parse_json,
    read_object,
    validated,
)

__all__ = [
    "PROTOCOLS",
    "AtomicFile",
    "Cache",
    "FileName",
    "JournalFile",
    "Record",
    "RetryPolicy",
    "appeared",
    "default_folder",
    "download",
    "exists",
    "file_name",
    "hash_of",
    "is_not_finite",
    "is_number",
    "is_remote",
    "is_rest",
    "join",
    "journal_lines",
    "listed",
    "local_path",
    "now",
    "open_own",
    "open_remote",
    "parse_json",
    "plain_file",
    "read",
    "read_object",
    "refuse_large",
    "refuse_link",
    "remove",
    "shown",
    "size_of",
    "sync",
    "upload",
    "validated",
    "writable_path",
    "write_whole",
    "writing_in",
]
