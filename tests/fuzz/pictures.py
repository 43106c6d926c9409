"""Ways to spoil a file of an image, of regions of one, or a tar of such."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data_pipeline.images.pictures import BAD, GOOD, encoded, huge
from tests.fuzz.mutations import NAMES, NUMBERS, Random, anything, change_bytes, change_tree

SIDES = [0, 1, 7, 8, 9, 255, 8191, 16_383, 20_000, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
"""Pixels that a header says."""
MODES = ("1", "L", "LA", "P", "PA", "RGBA", "CMYK", "I", "I;16", "F", "YCbCr", "LAB", "HSV")
FORMS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
LABELS = [
    b"",
    b"-1",
    b"1.0",
    b"1e3",
    b"true",
    b"0x1",
    b"1_0",
    " \u0663".encode(),
    b"nan",
    b"9" * 5000,
    b"4095",
    b"\xff",
]


def spoil_picture(content: bytes, draw: Random) -> bytes:
    """An image's bytes: flipped and cut, of other sizes by the header, of another kind, or none at all."""
    ways: list[Callable[[], bytes]] = [
        lambda: change_bytes(content, draw),
        lambda: change_bytes(content, draw),
        lambda: resized(content, draw),
        lambda: other_picture(draw),
        lambda: change_bytes(other_picture(draw), draw),
        lambda: draw.choice([*GOOD.values(), *(bad for bad, _ in BAD.values())]),
        lambda: draw.choice([b"", huge(), bomb(draw), content * 3]),
    ]
    return draw.choice(ways)()


def resized(content: bytes, draw: Random) -> bytes:
    """One whose header says other sizes than it has."""
    width, height = draw.choice(SIDES), draw.choice([16, 16, draw.choice(SIDES)])
    changed = bytearray(content)
    if content[:4] == b"\x89PNG":
        changed[16:24] = struct.pack(">II", width, height)
        changed[29:33] = struct.pack(">I", zlib.crc32(changed[12:29]))
    elif content[:2] == b"\xff\xd8":
        at = next((content.find(mark) for mark in (b"\xff\xc0", b"\xff\xc2") if mark in content), 0)
        changed[at + 5 : at + 9] = struct.pack(">HH", height % 65536, width % 65536)
    elif content[:3] == b"GIF":
        changed[6:10] = struct.pack("<HH", width % 65536, height % 65536)
    elif content[:4] == b"RIFF":
        changed[24:30] = struct.pack("<I", width)[:3] + struct.pack("<I", height)[:3]
    else:
        return change_bytes(content, draw)
    return bytes(changed)


def other_picture(draw: Random) -> bytes:
    """One of a mode and a form that few have; of noise where the form has no such mode."""
    width, height = draw.choice([1, 8, 12, 40]), draw.choice([1, 8, 12, 200])
    noise = np.frombuffer(draw.randbytes(width * height * 3), np.uint8).reshape(height, width, 3)
    image, form = Image.fromarray(noise), draw.choice(FORMS)
    try:
        return encoded(image.convert(draw.choice(MODES)), form)
    except (OSError, ValueError):
        return encoded(image, form)


def bomb(draw: Random) -> bytes:
    """A small PNG of many pixels, or of much text."""

    def chunk(kind: bytes, inside: bytes) -> bytes:
        return struct.pack(">I", len(inside)) + kind + inside + struct.pack(">I", zlib.crc32(kind + inside))

    side = draw.choice([600, 3000])
    rows = zlib.compress(bytes((side + 1) * side))
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(draw.choice([1 << 10, 1 << 25]))))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    parts = [header, *[text] * draw.choice([0, 1, 9]), chunk(b"IDAT", rows), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def spoil_regions(content: bytes, draw: Random) -> bytes:
    """A `.npz`: its bytes, one of its arrays, what headers say of it, or members of other names."""
    if draw.random() < 0.3:
        return change_bytes(content, draw)
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    name = draw.choice([*arrays])
    array = arrays[name]
    number = draw.choice([*NUMBERS[:8], float("nan"), float("inf"), -float("inf"), 1e300, -0.5])
    ways: list[Callable[[], np.ndarray]] = [
        lambda: array[draw.choice([slice(0, 0), slice(1, None), slice(None, None, -1)])],
        lambda: array[..., :1],
        lambda: array.astype(draw.choice(["f8", "i4", "u1", "?", "c8", "S3", "O", "M8[s]", ">f2"])),
        lambda: np.asfortranarray(array),
        lambda: np.full_like(array, number, dtype="f8"),
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: np.zeros((len(array), 0)),
        lambda: np.concatenate([array] * 40),
    ]
    with np.errstate(all="ignore"):
        arrays[name] = draw.choice(ways)()
    if draw.random() < 0.2:
        arrays[draw.choice(["features", "extra", "../escape", "conf"])] = arrays.pop(name)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])) as file:
        for one, value in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, value)
            said = member.getvalue()
            if draw.random() < 0.1:
                said = said.replace(b"'shape': (", b"'shape': (" + draw.choice([b"9", b"-", b"2**40,", b"(("]), 1)
            file.writestr(f"{one}.npy", said)
    return out.getvalue() if draw.random() < 0.8 else change_bytes(out.getvalue(), draw)


def spoil_note(content: bytes, draw: Random) -> bytes:
    """A `.json`, `.txt` or `.cls` beside an image."""
    if draw.random() < 0.3:
        return change_bytes(content, draw)
    if content.startswith(b"{"):
        return json.dumps(change_tree(json.loads(content), draw)).encode()
    if content.isdigit():
        return draw.choice(LABELS)
    return draw.choice([str(anything(draw)).encode(errors="surrogatepass"), content * 5000, b"", b"\xff", b"-- !"])


def spoil_by_name(name: str, content: bytes, draw: Random) -> bytes:
    """What a file of this name holds."""
    if name.endswith(".npz"):
        return spoil_regions(content, draw)
    return (spoil_note if name.endswith((".json", ".txt", ".cls")) else spoil_picture)(content, draw)


def spoil_tar(path: Path, draw: Random) -> None:
    """Of a tar its bytes, a member, or what stands in the header of one."""
    if draw.random() < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
        return
    with tarfile.open(path) as tar:
        read = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    chosen = draw.randrange(len(read))
    if draw.random() < 0.1:
        draw.shuffle(read)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=draw.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:
        for number, (member, content) in enumerate(read):
            way = draw.random() if number == chosen else 1.0
            if way < 0.5:
                content = spoil_by_name(member.name, content, draw)
            elif way < 0.6:
                odd = [
                    "../../escape.jpg",
                    "/etc/x.json",
                    "a" * 300 + ".jpg",
                    "x.JPG",
                    ".jpg",
                    "a.b.c.jpg",
                    "é\udcff.cls",
                ]
                member.name = draw.choice([*odd, *(name for name in NAMES if name and "\0" not in name)])
            elif way < 0.7:
                kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
                member.type, member.linkname = draw.choice(kinds), draw.choice(["/etc/passwd", read[0][0].name])
            elif way < 0.75:
                continue
            elif way < 0.8:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))  # twice
            elif way < 0.85:
                name = draw.choice(["GNU.sparse.size", "GNU.sparse.map", "GNU.sparse.realsize", "size", "path"])
                member.pax_headers = {name: draw.choice(["-1", "1e9", "99999999999", "../../x", "0,1"])}
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(out.getvalue())
