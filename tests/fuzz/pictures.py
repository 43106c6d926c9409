"""Mutations of images, of regions, and of tar files with them."""

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
from tests.fuzz.mutations import NAMES, NUMBERS, Random, change_bytes, change_tree, random_value

SIDES = [0, 1, 7, 8, 9, 255, 8191, 16_383, 20_000, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
"""Sizes in pixels for headers."""
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


def mutate_picture(content: bytes, rng: Random) -> bytes:
    """Change an image: its bytes, the size in its header, its type, or replace it."""
    ways: list[Callable[[], bytes]] = [
        lambda: change_bytes(content, rng),
        lambda: change_bytes(content, rng),
        lambda: with_other_size(content, rng),
        lambda: other_picture(rng),
        lambda: change_bytes(other_picture(rng), rng),
        lambda: rng.choice([*GOOD.values(), *(invalid for invalid, _ in BAD.values())]),
        lambda: rng.choice([b"", huge(), decompression_bomb(rng), content * 3]),
    ]
    return rng.choice(ways)()


def with_other_size(content: bytes, rng: Random) -> bytes:
    """Return the image with another size in its header."""
    width, height = rng.choice(SIDES), rng.choice([16, 16, rng.choice(SIDES)])
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
        return change_bytes(content, rng)
    return bytes(changed)


def other_picture(rng: Random) -> bytes:
    """Return an image with a rare mode and format."""
    width, height = rng.choice([1, 8, 12, 40]), rng.choice([1, 8, 12, 200])
    noise = np.frombuffer(rng.randbytes(width * height * 3), np.uint8).reshape(height, width, 3)
    image, form = Image.fromarray(noise), rng.choice(FORMS)
    try:
        return encoded(image.convert(rng.choice(MODES)), form)
    except (OSError, ValueError):
        return encoded(image, form)


def decompression_bomb(rng: Random) -> bytes:
    """Return a small PNG with many pixels or much text."""

    def chunk(kind: bytes, inside: bytes) -> bytes:
        return struct.pack(">I", len(inside)) + kind + inside + struct.pack(">I", zlib.crc32(kind + inside))

    side = rng.choice([600, 3000])
    rows = zlib.compress(bytes((side + 1) * side))
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(rng.choice([1 << 10, 1 << 25]))))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    parts = [header, *[text] * rng.choice([0, 1, 9]), chunk(b"IDAT", rows), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def mutate_regions(content: bytes, rng: Random) -> bytes:
    """Change a `.npz` file: its bytes, an array, a header, or names of members."""
    if rng.random() < 0.3:
        return change_bytes(content, rng)
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    name = rng.choice([*arrays])
    array = arrays[name]
    number = rng.choice([*NUMBERS[:8], float("nan"), float("inf"), -float("inf"), 1e300, -0.5])
    ways: list[Callable[[], np.ndarray]] = [
        lambda: array[rng.choice([slice(0, 0), slice(1, None), slice(None, None, -1)])],
        lambda: array[..., :1],
        lambda: array.astype(rng.choice(["f8", "i4", "u1", "?", "c8", "S3", "O", "M8[s]", ">f2"])),
        lambda: np.asfortranarray(array),
        lambda: np.full_like(array, number, dtype="f8"),
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: np.zeros((len(array), 0)),
        lambda: np.concatenate([array] * 40),
    ]
    with np.errstate(all="ignore"):
        arrays[name] = rng.choice(ways)()
    if rng.random() < 0.2:
        arrays[rng.choice(["features", "extra", "../escape", "conf"])] = arrays.pop(name)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])) as file:
        for member_name, value in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, value)
            member_content = member.getvalue()
            if rng.random() < 0.1:
                member_content = member_content.replace(
                    b"'shape': (", b"'shape': (" + rng.choice([b"9", b"-", b"2**40,", b"(("]), 1
                )
            file.writestr(f"{member_name}.npy", member_content)
    return out.getvalue() if rng.random() < 0.8 else change_bytes(out.getvalue(), rng)


def mutate_note(content: bytes, rng: Random) -> bytes:
    """Change a `.json`, `.txt` or `.cls` file beside an image."""
    if rng.random() < 0.3:
        return change_bytes(content, rng)
    if content.startswith(b"{"):
        return json.dumps(change_tree(json.loads(content), rng)).encode()
    if content.isdigit():
        return rng.choice(LABELS)
    return rng.choice([str(random_value(rng)).encode(errors="surrogatepass"), content * 5000, b"", b"\xff", b"-- !"])


def mutate_by_name(name: str, content: bytes, rng: Random) -> bytes:
    """Change the content of a file according to its name."""
    if name.endswith(".npz"):
        return mutate_regions(content, rng)
    return (mutate_note if name.endswith((".json", ".txt", ".cls")) else mutate_picture)(content, rng)


def mutate_tar(path: Path, rng: Random) -> None:
    """Change a tar file: its bytes, a member, or a header."""
    if rng.random() < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
        return
    with tarfile.open(path) as tar:
        read = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    chosen = rng.randrange(len(read))
    if rng.random() < 0.1:
        rng.shuffle(read)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:
        for number, (member, content) in enumerate(read):
            way = rng.random() if number == chosen else 1.0
            if way < 0.5:
                content = mutate_by_name(member.name, content, rng)
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
                member.name = rng.choice([*odd, *(name for name in NAMES if name and "\0" not in name)])
            elif way < 0.7:
                kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
                member.type, member.linkname = rng.choice(kinds), rng.choice(["/etc/passwd", read[0][0].name])
            elif way < 0.75:
                continue
            elif way < 0.8:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))  # duplicated
            elif way < 0.85:
                name = rng.choice(["GNU.sparse.size", "GNU.sparse.map", "GNU.sparse.realsize", "size", "path"])
                member.pax_headers = {name: rng.choice(["-1", "1e9", "99999999999", "../../x", "0,1"])}
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(out.getvalue())
