"""What points to a person: e-mail addresses, public IP addresses, telephone numbers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_pipeline.clean.step import with_text
from data_pipeline.document import Document, Dropped

Found = tuple[int, int, str]
"""First character, the one after the last, and what stands there instead."""

# Every digit as 0, small letters: what numbers look like is then found by plain search, which is fast.
SHAPES = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ123456789", b"abcdefghijklmnopqrstuvwxyz000000000")

# RFC 5322 allows more signs, but in texts those around a name are quotation marks, backticks and stars.
EMAIL_NAME = re.compile(r"(?<![\w%&+=-])[\w%&+=-]+(?:\.[\w%&+=-]+)*\Z")
EMAIL_DOMAIN = re.compile(r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+([A-Za-z]{2,24})(?![\w-])")
LONGEST_NAME = 64
# `logo@2x.png` and `getty@tty1.service` are names of files.
NO_DOMAINS = {"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "service", "socket", "target", "timer", "mount"}

# With more of it before or after, a number is part of a version, a date or a name.
IPV4 = re.compile(r"(?<![\w.-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w-]|\.\w)", re.ASCII)
VERSION_BEFORE = re.compile(r"(?:\bv|version|release|build|revision)[\s.:=\"'(]{0,3}\Z", re.IGNORECASE)
ADDRESS_BEFORE = re.compile(r"\b(?:ips?|address|addr|host|server|client|from|ping)[\s:=\"'(\[]{1,3}\Z", re.IGNORECASE)
BEFORE = 16
SMALL = 100
# Addresses that the world routes begin with 2 or 3 (RFC 4291, section 2.4); `std::begin` and 12:30:59 do not.
IPV6 = re.compile(r"(?<![\w:.])[23][0-9a-f]{3}:[0-9a-f:]{2,34}(?!\w)", re.IGNORECASE | re.ASCII)

NORTH_AMERICAN = re.compile(
    r"(?<![\w+.-])(?:\+?1[-. ])?(?:\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[-. ]|[2-9][0-9]{2}([-.])[2-9][0-9]{2}\1)[0-9]{4}"
    r"(?![\w-]|\.\w)"
)
INTERNATIONAL = re.compile(r"(?<![\w+])\+[1-9](?:[ ().-]{0,2}[0-9]){6,14}(?![\w-]|\.\w)")
NAMED = re.compile(
    r"\b(?:tele)?(?:phone|tel|fax|mobile)(?: number| no)?[.:]{1,2} ?(\(?[0-9][0-9 ()./-]{5,18}[0-9])(?![\w-]|\.\w)",
    re.IGNORECASE,
)
NAMES = (b"phone", b"tel", b"fax", b"mobile")
MOST_DIGITS = 15
"""Of a telephone number (ITU-T E.164)."""


@dataclass(frozen=True)
class Scrub:
    """Put a placeholder for each e-mail address, public IP address and telephone number; `null` leaves a kind alone.

    The first three placeholders are reserved for such use (RFC 2606, 5737 and 3849). `notes["scrubbed"]` counts.
    """

    email: str | None = "email@example.com"
    ipv4: str | None = "192.0.2.1"
    ipv6: str | None = "2001:db8::1"
    phone: str | None = "<phone>"

    def __call__(self, documents: Iterable[Document], dropped: Dropped) -> Iterator[Document]:
        for document in documents:
            found = list(self._found(document.text))
            if not found:
                yield document
                continue
            text, count = _replace(document.text, found)
            yield with_text(document, text, scrubbed=count) if count else document

    def _found(self, text: str) -> Iterator[Found]:
        # One byte a character, so that places are the same in both.
        shape = text.encode("ascii", "replace").translate(SHAPES)
        if self.email is not None:
            yield from _emails(text, self.email)
        if self.ipv4 is not None:
            yield from _ipv4(text, shape, self.ipv4)
        if self.ipv6 is not None:
            yield from _ipv6(text, shape, self.ipv6)
        if self.phone is not None:
            yield from _phones(text, shape, self.phone)


def _replace(text: str, found: list[Found]) -> tuple[str, int]:
    """The text with each found thing replaced; of two that overlap the first."""
    parts, end, count = [], 0, 0
    for first, last, instead in sorted(found):
        if first >= end:
            parts += [text[end:first], instead]
            end, count = last, count + (text[first:last] != instead)
    return "".join([*parts, text[end:]]), count


def _places(text: str | bytes, what: str | bytes) -> Iterator[int]:
    place = text.find(what)  # type: ignore[arg-type]
    while place >= 0:
        yield place
        place = text.find(what, place + 1)  # type: ignore[arg-type]


def _emails(text: str, instead: str) -> Iterator[Found]:
    for at in _places(text, "@"):
        domain = EMAIL_DOMAIN.match(text, at)
        if domain and domain[1].lower() not in NO_DOMAINS:
            name = EMAIL_NAME.search(text, max(0, at - LONGEST_NAME), at)
            if name:
                yield name.start(), domain.end(), instead


def _ipv4(text: str, shape: bytes, instead: str) -> Iterator[Found]:
    for match in re.finditer(rb"0\.0{1,3}\.0{1,3}\.0", shape):
        # The first number may begin two digits before, the last may have two more, and what follows is looked at.
        address = IPV4.search(text, max(0, match.start() - 2), match.end() + 4)
        if address and _is_public(address[0]) and not _is_version(text, address):
            yield address.start(), address.end(), instead


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _is_version(text: str, address: re.Match[str]) -> bool:
    """Four numbers below 100 are rather a version or a section, unless the word before says otherwise."""
    before = text[max(0, address.start() - BEFORE) : address.start()]
    if VERSION_BEFORE.search(before):
        return True
    return max(map(int, address[0].split("."))) < SMALL and not ADDRESS_BEFORE.search(before)


def _ipv6(text: str, shape: bytes, instead: str) -> Iterator[Found]:
    for match in re.finditer(rb"0[0a-f]{3}:[0a-f:]", shape):
        address = IPV6.match(text, match.start())
        if address:
            # A colon at the end belongs to the sentence, two to the address.
            digits = address[0][:-1] if address[0].endswith(":") and address[0][-2] != ":" else address[0]
            if _is_public(digits):
                yield address.start(), address.start() + len(digits), instead


def _phones(text: str, shape: bytes, instead: str) -> Iterator[Found]:
    for end in (b"000-0000", b"000.0000", b"000 0000"):
        for place in _places(shape, end):
            if number := NORTH_AMERICAN.search(text, max(0, place - 9), place + 10):
                yield number.start(), number.end(), instead
    for place in _places(shape, b"+0"):
        number = INTERNATIONAL.match(text, place)
        # Ten digits, or groups of them: else it is a number with a sign.
        if number and (len(number[0]) > 10 or not number[0][1:].isdigit()):
            yield number.start(), number.end(), instead
    for name in NAMES:
        for place in _places(shape, name):
            number = NAMED.search(text, max(0, place - 4), place + 50)
            if number and sum(map(str.isdigit, number[1])) <= MOST_DIGITS:
                yield number.start(1), number.end(1), instead
