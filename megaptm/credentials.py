"""Refusal of passwords and keys in URLs: every checkpoint of a run stores its command, its config and its URLs.

Input is refused before any of it is written or shown; the message does not repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from megaptm.errors import UserError

# No scheme is longer; without a limit, a long word without `://` takes quadratic time.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")
HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:@\[\]]*)(:\d*)?")
# For these, the part before an @ is an account, a container or a login name, not a secret. Elsewhere it may be a token.
ACCOUNT_SCHEMES = re.compile(r"abfss?|wasbs?|az|adl|hdfs|ssh|sftp|ftp|postgres.*|mysql.*|mssql.*|oracle.*")
# In image names, an @ precedes the hash.
IMAGES = ("docker", "dockerd", "oci", "oras", "library")
HASHES = ("sha256:", "sha512:")
# The path starts after the `://`.
FILES = ("file", "sqlite")
BUCKETS = ("s3", "s3a", "gs", "gcs")
"""URL schemes of object stores, in which no port can follow the `://`."""
# matches `sig`, `Signature`, `X-Amz-Credential`, `AWSAccessKeyId`, `access_token`, `api-key`, `password` ...
SECRET_FIELD = re.compile(
    r"(^|[-_])(sig|auth|authorization|key|pass|jwt|hmac|bearer)$|(^|[-_])sign|token$|secret|passw|pwd|credential"
    r"|(api|access|account|shared)[-_]?key"
)
LONGEST_QUOTE = 200
"""Maximum number of characters that an error quotes of a library's message."""
REMEDY = (
    "remove them, because every checkpoint of a run stores its config. Set secrets in the environment "
    "(MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or in the "
    "files of the tools (~/.mlflow/credentials, ~/.aws/credentials, ~/.pgpass)."
)


def refuse_credentials(text: str, *, where: str) -> None:
    """Raise UserError if `text` is or contains a URL with a password, a key or a signature; `where` names the text."""
    if has_credentials(text):
        raise UserError(f"{where}: the URL contains a password, a key or a signature: {REMEDY}")


def refuse_credentials_in_words(words: Iterable[str]) -> None:
    """Raise UserError if a word of a command contains such a URL; the message has the key, or the position of the
    word."""
    for index, word in enumerate(words, 1):
        name = word.partition("=")[0]
        named = name if "=" in word and "://" not in name else f"word {index} of the command"
        refuse_credentials(word, where=named)


def has_credentials(text: str) -> bool:
    """Whether a text contains a URL with a password, a key or a signature."""
    _, *parts = SCHEME.split(text)  # scheme, remainder, scheme, remainder ...
    for scheme, follows in zip(parts[::2], parts[1::2], strict=True):
        url = "".join(follows.split()[:1])
        if _in_authority(scheme.lower(), url) or _in_fields(url):
            return True
    return False


def without_credentials(text: str) -> str:
    """Return a library's message without the secrets of its URLs: these come from the environment, or from a redirect
    to a signed URL."""
    return "".join(_cut_secret(word) if has_credentials(word) else word for word in re.split(r"(\s+)", text))


def brief_message(error: BaseException) -> str:
    """Return the message of a library's error, or its type if empty: on one line, truncated, without secrets."""
    words = without_credentials(" ".join(str(error).split())) or type(error).__name__
    return words if len(words) <= LONGEST_QUOTE else f"{words[: LONGEST_QUOTE - 3]}..."


def _cut_secret(word: str) -> str:
    """Return a word of a message that contains a URL, cut before the first part that may be secret."""
    before, mark, url = word.partition("://")
    host = url.rpartition("@")[2]
    return f"{before}{mark}{re.split(r'[/?#;]', host)[0]}/..."


def _in_authority(scheme: str, url: str) -> bool:
    """Whether a URL has `user:password@host`. Keys may hold slashes, so the authority may extend past the first one."""
    url = url if scheme in FILES else url.lstrip("/")
    before, at, after = url.partition("@")
    if not at or url.startswith("/"):  # file:///a:b@c
        return False
    if scheme in IMAGES:
        return ":" in before and not after.startswith(HASHES)
    authority, slash, _ = before.partition("/")
    if slash:  # in a path, after a host or bucket: `http://host:5000/a@b`, `s3://bucket/a@b`
        return not HOST_AND_PORT.fullmatch(authority) or (scheme in BUCKETS and ":" in authority)
    return ":" in unquote(before) or not ACCOUNT_SCHEMES.fullmatch(scheme.partition("+")[0])


def _in_fields(url: str) -> bool:
    """Whether a URL has `?token=...`, `#access_token=...` or `;password=...`."""
    for field in re.split(r"[?&#;]", url)[1:]:
        name, _, value = field.partition("=")
        if value and SECRET_FIELD.search(unquote(name).strip().lower()):
            return True
    return False
