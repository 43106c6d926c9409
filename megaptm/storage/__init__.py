"""Files on disk and on object stores behind one interface. Every remote call has a deadline and is retried."""

from megaptm.errors import shown
from megaptm.storage.atomic_file import AtomicFile, created_paths, sync, write_atomically
from megaptm.storage.cache import Cache, default_cache_folder
from megaptm.storage.files import (
    download,
    exists,
    file_sha256,
    file_size,
    is_remote,
    join_path,
    list_files,
    local_path,
    read_file,
    refuse_large_file,
    regular_file,
    remove_file,
    upload,
    writable_path,
)
from megaptm.storage.journal import JournalFile, is_finite_number, is_nonfinite, now, parse_journal
from megaptm.storage.remote import PROTOCOLS
from megaptm.storage.retry import RetryPolicy
from megaptm.storage.safe_files import refuse_link, safe_open
from megaptm.storage.stream import open_remote
from megaptm.storage.unfinished import is_unfinished, write_session
from megaptm.storage.untrusted import (
    FileName,
    Record,
    parse_json,
    read_json_object,
    validate,
    validate_file_name,
)

__all__ = [
    "PROTOCOLS",
    "AtomicFile",
    "Cache",
    "FileName",
    "JournalFile",
    "Record",
    "RetryPolicy",
    "created_paths",
    "default_cache_folder",
    "download",
    "exists",
    "file_sha256",
    "file_size",
    "is_finite_number",
    "is_nonfinite",
    "is_remote",
    "is_unfinished",
    "join_path",
    "list_files",
    "local_path",
    "now",
    "open_remote",
    "parse_journal",
    "parse_json",
    "read_file",
    "read_json_object",
    "refuse_large_file",
    "refuse_link",
    "regular_file",
    "remove_file",
    "safe_open",
    "shown",
    "sync",
    "upload",
    "validate",
    "validate_file_name",
    "writable_path",
    "write_atomically",
    "write_session",
]
