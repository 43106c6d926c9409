"""Files on disk and on object stores behind one interface. Every remote call has a deadline and is retried."""

from megaptm.errors import quote_value
from megaptm.storage.atomic_file import (
    AtomicFile,
    created_paths,
    is_unfinished_file,
    sync_to_disk,
    write_atomically,
    write_session,
)
from megaptm.storage.cache import RemoteFileCache, default_cache_folder
from megaptm.storage.files import (
    download,
    exists,
    expand_home,
    file_sha256,
    file_size,
    hash_regular_file,
    is_remote,
    join_path,
    list_files,
    local_path,
    read_file,
    read_table_lines,
    read_text_file,
    refuse_large_file,
    regular_file,
    remove_file,
    upload,
    writable_path,
)
from megaptm.storage.journal import JournalFile, is_finite_number, is_number_or_nan, now, parse_journal
from megaptm.storage.remote import PROTOCOLS
from megaptm.storage.retry import RetryPolicy
from megaptm.storage.safe_files import refuse_link, safe_open
from megaptm.storage.stream import open_remote
from megaptm.storage.untrusted import (
    FileName,
    Record,
    parse_json,
    read_json_object,
    validate,
    validate_file_name,
)
