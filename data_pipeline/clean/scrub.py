"""Replace personal information: e-mail addresses, public IP addresses, telephone numbers."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_pipeline.clean.step import import_library, with_text
from data_pipeline.document import Document, DropCounts

Match = tuple[int, int, str]
"""Match of personal information: start, end, and the replacement."""

# Maps digits to 0 and letters to lower case, so that candidates can be found by fast substring search.
SHAPES = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ123456789", b"abcdefghijklmnopqrstuvwxyz000000000")

# Letters of scripts that may precede or follow an address or number without a space: Thai to Khmer, Chinese, Japanese,
# Korean.
SPACELESS_SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u11ff\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
WORD = rf"[^\W{SPACELESS_SCRIPTS}]"
"""Pattern of a letter, digit or underscore that would make an adjacent match part of a longer word."""

# RFC 5322 allows more signs, but around a name in a text they are quotation marks, backticks and asterisks.
SIGNS = "%&+=-"
EMAIL_NAME = re.compile(rf"(?<!{WORD})(?<![{SIGNS}])(?:{WORD}|[{SIGNS}])+(?:\.(?:{WORD}|[{SIGNS}])+)*\Z")
# The local part may be Chinese (RFC 6531) if nothing else precedes the `@`.
ANY_EMAIL_NAME = re.compile(rf"(?<![\w{SIGNS}])[\w{SIGNS}]+(?:\.[\w{SIGNS}]+)*\Z")
EMAIL_DOMAIN = re.compile(rf"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?\.)+([A-Za-z]{{2,24}})(?!{WORD}|-)")
MAX_NAME_CHARACTERS = 64
# Suffixes of file names: `logo@2x.png`, `getty@tty1.service`.
FILE_SUFFIXES = {
    "png",
    "jpg",
    "jpeg",
    "gif",
    "svg",
    "webp",
    "css",
    "js",
    "service",
    "socket",
    "target",
    "timer",
    "mount",
}

# A number with word characters before or after it is part of a version, a date or a name.
IPV4 = re.compile(r"(?<![\w.-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w-]|\.\w)", re.ASCII)
VERSION_BEFORE = re.compile(r"(?:\bv|version|release|build|revision)[\s.:=\"'(]{0,3}\Z", re.IGNORECASE)
ADDRESS_BEFORE = re.compile(r"\b(?:ips?|address|addr|host|server|client|from|ping)[\s:=\"'(\[]{1,3}\Z", re.IGNORECASE)
CONTEXT_CHARACTERS = 16
MAX_VERSION_NUMBER = 100
# Globally routed addresses start with 2 or 3 (RFC 4291, section 2.4); `std::begin` and 12:30:59 do not.
IPV6 = re.compile(r"(?<![\w:.])[23][0-9a-f]{3}:[0-9a-f:]{2,34}(?!\w)", re.IGNORECASE | re.ASCII)

# Currency signs and percent signs exclude amounts of money and percentages.
NOT_BEFORE = rf"(?<!{WORD})(?<![$£¥€])"
NOT_AFTER = rf"(?!{WORD}|[-$£¥€%]|\.\w)"
NORTH_AMERICAN = re.compile(
    rf"{NOT_BEFORE}(?<![+.-])(?:\+?1[-. ])?"
    r"(?:\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[-. ]|[2-9][0-9]{2}([-.])[2-9][0-9]{2}\1)[0-9]{4}" + NOT_AFTER
)
INTERNATIONAL = re.compile(rf"{NOT_BEFORE}(?<!\+)\+[1-9](?:[ \xa0().-]{{0,2}}[0-9]){{6,14}}{NOT_AFTER}")
LAST_GROUP = re.compile(r"[ \xa0]\(?[0-9]+\Z")
NUMBER = r"([(\uff08]?[0-9][0-9 ()\uff08\uff09./-]{5,18}[0-9])" + NOT_AFTER
LABELED_NUMBER = re.compile(
    rf"(?<!{WORD})(?:tele)?(?:phone|tel|fax|mobile)(?: number| no)?[.:\uff1a]{{1,2}} ?{NUMBER}", re.IGNORECASE
)
LABELED_NUMBER_CJK = re.compile(
    "(?:电话|電話|手机|手機|传真|傳真|携帯|ファックス|ファクス|전화|휴대폰|팩스|연락처)"
    rf"(?:号码|號碼|番号|번호)?[是은는]?[:\uff1a ]{{0,2}}{NUMBER}"
)
PHONE_LABELS = (b"phone", b"tel", b"fax", b"mobile")
MAX_DIGITS = 15
"""Maximum digits of a telephone number (ITU-T E.164)."""
MAX_SINGLE_DIGITS = 2
"""Maximum single digits in a telephone number (`+1 2 3 4 5 6 7 8` is a list)."""
DECIMAL = re.compile(r"\+?[0-9]{1,3}\.[0-9]+\Z")
ADJACENT_DECIMAL = re.compile(r"[0-9]\.[0-9]+°?[,;/ ]{1,2}\Z"), re.compile(r"°|[,;/ ]{0,2}[+-]?[0-9]{1,3}\.[0-9]")
# After `phone:`, a date, two years, or decimal numbers are not a telephone number.
NOT_PHONE = re.compile(
    r"(?:[0-9]{1,2}[-./]){2}(?:[0-9]{2}){1,2}\Z|(?:19|20)[0-9]{2}[-./](?:[0-9]{1,2}[-./][0-9]{1,2}|(?:19|20)[0-9]{2})\b"
    r"|[0-9]+\.[0-9]+[ /]+[0-9]+\.[0-9]|(?:[0-9]{3} ){3}[0-9]{3}\Z"
)


@dataclass(frozen=True)
class Scrub:
    """Replace e-mail addresses, public IP addresses and telephone numbers with placeholders; `null` disables a kind.

    The first three placeholders are reserved for such use (RFC 2606, 5737 and 3849). `notes["scrubbed"]` is the number
    of replacements.
    """

    email: str | None = "email@example.com"
    ipv4: str | None = "192.0.2.1"
    ipv6: str | None = "2001:db8::1"
    phone: str | None = "<phone>"

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            matches = list(self._find_matches(document.text))
            if not matches:
                yield document
                continue
            text, count = _replace_matches(document.text, matches)
            yield with_text(document, text, scrubbed=count) if count else document

    def _find_matches(self, text: str) -> Iterator[Match]:
        # One byte per character, so that offsets in `shape` and `text` are equal.
        shape = text.encode("ascii", "replace").translate(SHAPES)
        if self.email is not None:
            yield from _find_emails(text, self.email)
        if self.ipv4 is not None:
            yield from _find_ipv4(text, shape, self.ipv4)
        if self.ipv6 is not None:
            yield from _find_ipv6(text, shape, self.ipv6)
        if self.phone is not None:
            yield from _find_phones(text, shape, self.phone)


def _replace_matches(text: str, matches: list[Match]) -> tuple[str, int]:
    """Replace all matches of personal information. Of two that overlap, the first is replaced."""
    parts, end, count = [], 0, 0
    for first, last, placeholder in sorted(matches):
        if first >= end:
            parts += [text[end:first], placeholder]
            end, count = last, count + (text[first:last] != placeholder)
    return "".join([*parts, text[end:]]), count


def _find_all(text: str | bytes, substring: str | bytes) -> Iterator[int]:
    at = text.find(substring)  # type: ignore[arg-type]
    while at >= 0:
        yield at
        at = text.find(substring, at + 1)  # type: ignore[arg-type]


def _find_emails(text: str, placeholder: str) -> Iterator[Match]:
    for at in _find_all(text, "@"):
        domain = EMAIL_DOMAIN.match(text, at)
        if domain and domain[1].lower() not in FILE_SUFFIXES:
            begin = max(0, at - MAX_NAME_CHARACTERS)
            name = EMAIL_NAME.search(text, begin, at) or ANY_EMAIL_NAME.search(text, begin, at)
            if name:
                yield name.start(), domain.end(), placeholder


def _find_ipv4(text: str, shape: bytes, placeholder: str) -> Iterator[Match]:
    for match in re.finditer(rb"0\.0{1,3}\.0{1,3}\.0", shape):
        # The first number may start two digits earlier, the last may have two more, and the lookahead needs context.
        address = IPV4.search(text, max(0, match.start() - 2), match.end() + 4)
        if address and _is_public(address[0]) and not _is_version(text, address):
            yield address.start(), address.end(), placeholder


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _is_version(text: str, address: re.Match[str]) -> bool:
    """Whether an apparent IP address is rather a version or section: four numbers below 100, unless the word before
    implies an address."""
    before = text[max(0, address.start() - CONTEXT_CHARACTERS) : address.start()]
    if VERSION_BEFORE.search(before):
        return True
    return max(map(int, address[0].split("."))) < MAX_VERSION_NUMBER and not ADDRESS_BEFORE.search(before)


def _find_ipv6(text: str, shape: bytes, placeholder: str) -> Iterator[Match]:
    for match in re.finditer(rb"0[0a-f]{3}:[0a-f:]", shape):
        address = IPV6.match(text, match.start())
        if address:
            # A single colon at the end is punctuation; two belong to the address.
            digits = address[0][:-1] if address[0].endswith(":") and address[0][-2] != ":" else address[0]
            if _is_public(digits):
                yield address.start(), address.start() + len(digits), placeholder


def _find_phones(text: str, shape: bytes, placeholder: str) -> Iterator[Match]:
    for end in (b"000-0000", b"000.0000", b"000 0000"):
        for at in _find_all(shape, end):
            number = NORTH_AMERICAN.search(text, max(0, at - 9), at + 10)
            if number and _is_assigned(number[0] if number[0].startswith(("+", "1")) else f"+1 {number[0]}"):
                yield number.start(), number.end(), placeholder
    for at in _find_all(shape, b"+0"):
        if size := _international_length(text, at):
            yield at, at + size, placeholder
    named = (
        LABELED_NUMBER.search(text, max(0, at - 4), at + 50) for name in PHONE_LABELS for at in _find_all(shape, name)
    )
    for number in itertools.chain(named, () if text.isascii() else LABELED_NUMBER_CJK.finditer(text)):
        if number and not _is_list(number[1]) and not NOT_PHONE.match(number[1]):
            yield number.start(1), number.end(1), placeholder


def _international_length(text: str, at: int) -> int:
    """Return the length of the international telephone number at index `at` of a text; 0 without a number."""
    match = INTERNATIONAL.match(text, at)
    number = match[0] if match else ""
    # Fewer than ten digits without a gap are a signed number.
    if (
        not number
        or (len(number) <= 10 and number[1:].isdigit())
        or _is_list(number)
        or _is_coordinate(text, number, at)
    ):
        return 0
    while not _is_assigned(number):
        shorter = LAST_GROUP.sub("", number)
        if shorter == number:
            return 0
        number = shorter
    return len(number)


def _is_assigned(number: str) -> bool:
    """Whether a country's numbering plan contains the telephone number."""
    phonenumbers = import_library("phonenumbers", "scrub: phone")
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(number if number[0] == "+" else f"+{number}"))
    except phonenumbers.NumberParseException:
        return False


def _is_list(number: str) -> bool:
    groups = re.findall(r"[0-9]+", number)
    return sum(map(len, groups)) > MAX_DIGITS or sum(len(group) == 1 for group in groups) > MAX_SINGLE_DIGITS


def _is_coordinate(text: str, number: str, at: int) -> bool:
    """Whether a number is one of two decimal numbers, such as latitude and longitude (ISO 6709)."""
    first, second = number.split("-")[0], text[at + len(number.split("-")[0]) : at + len(number) + CONTEXT_CHARACTERS]
    if not DECIMAL.match(first):
        return False
    before, after = ADJACENT_DECIMAL
    return bool(after.match(second) or before.search(text[max(0, at - CONTEXT_CHARACTERS) : at]))
