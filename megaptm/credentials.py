"""Passwords and keys do not belong in URLs: a run keeps its command, its config and its addresses in every checkpoint.

What is typed or read is refused here before any of it is written or shown, by a sentence that does not repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from megaptm.errors import UserError

# No scheme is longer; without a bound, a long word without `://` takes quadratic time.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")
HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:@\[\]]*)(:\d*)?")
# Before an @ these have an account, a container or a login name, which is no secret. Elsewhere a token stands there.
NAMED_USERS = re.compile(r"abfss?|wasbs?|az|adl|hdfs|ssh|sftp|ftp|postgres.*|mysql.*|mssql.*|oracle.*")
# An @ is before the hash of an image.
IMAGES = ("docker", "dockerd", "oci", "oras", "library")
HASHES = ("sha256:", "sha512:")
# Their paths begin behind the ://.
FILES = ("file", "sqlite")
BUCKETS = ("s3", "s3a", "gs", "gcs")
"""What is behind their :// has no port."""
# `sig`, `Signature`, `X-Amz-Credential`, `AWSAccessKeyId`, `access_token`, `api-key`, `password` ...
SECRET_FIELD = re.compile(
    r"(^|[-_])(sig|auth|authorization|key|pass|jwt|hmac|bearer)$|(^|[-_])sign|token$|secret|passw|pwd|credential"
    r"|(api|access|account|shared)[-_]?key"
)
LONGEST_QUOTE = 200
"""Characters of what a library says, in a sentence."""
REMEDY = (
    "take it out, since runs keep what they are told with every checkpoint. Secrets come from the environment "
    "(MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or from the "
    "files of those tools (~/.mlflow/credentials, ~/.aws/credentials, ~/.pgpass)."
)


def refuse_credentials(text: str, *, where: str) -> None:
    """A `UserError` where `text` is, or holds, a URL with a password, a key or a signature; `where` says what it is."""
    if has_credentials(text):
        raise UserError(f"{where}: a URL with a password, a key or a signature in it: {REMEDY}")


def refuse_credentials_in_words(words: Iterable[str]) -> None:
    """A `UserError` where a word of a command is, or holds, such a URL; it names the key, or the word's number."""
    for number, word in enumerate(words, 1):
        name = word.partition("=")[0]
        named = name if "=" in word and "://" not in name else f"word {number} of the command"
        refuse_credentials(word, where=named)


def has_credentials(text: str) -> bool:
    """Whether there is a URL with such in it."""
    _, *rest = SCHEME.split(text)  # scheme, what follows, scheme, what follows ...
    for scheme, follows in zip(rest[::2], rest[1::2], strict=True):
        url = "".join(follows.split()[:1])
        if _in_authority(scheme.lower(), url) or _in_fields(url):
            return True
    return False


def without_credentials(text: str) -> str:
    """What a library says, without the secrets of the URLs in it: they come from the environment, or from a server that
    sent us on to an address with a signature."""
    return "".join(_shortened(word) if has_credentials(word) else word for word in re.split(r"(\s+)", text))


def in_brief(error: BaseException) -> str:
    """What an error of a library says, or its kind where it says nothing: some words, on one line, without secrets."""
    words = without_credentials(" ".join(str(error).split())) or type(error).__name__
    return words if len(words) <= LONGEST_QUOTE else f"{words[: LONGEST_QUOTE - 3]}..."


def _shortened(word: str) -> str:
    """A word with a URL in it, which ends where a secret could begin."""
    before, mark, url = word.partition("://")
    host = url.rpartition("@")[2]
    return f"{before}{mark}{re.split(r'[/?#;]', host)[0]}/..."


def _in_authority(scheme: str, rest: str) -> bool:
    """`user:password@host`. Keys may hold slashes: the authority does not always end where the standard has it."""
    rest = rest if scheme in FILES else rest.lstrip("/")
    before, at, after = rest.partition("@")
    if not at or rest.startswith("/"):  # file:///a:b@c
        return False
    if scheme in IMAGES:
        return ":" in before and not after.startswith(HASHES)
    authority, slash, _ = before.partition("/")
    if slash:  # in a path, behind a host or bucket: `http://host:5000/a@b`, `s3://bucket/a@b`
        return not HOST_AND_PORT.fullmatch(authority) or (scheme in BUCKETS and ":" in authority)
    return ":" in unquote(before) or not NAMED_USERS.fullmatch(scheme.partition("+")[0])


def _in_fields(rest: str) -> bool:
    """`?token=...`, `#access_token=...`, `;password=...`."""
    for field in re.split(r"[?&#;]", rest)[1:]:
        name, _, value = field.partition("=")
        if value and SECRET_FIELD.search(unquote(name).strip().lower()):
            return True
    return False
