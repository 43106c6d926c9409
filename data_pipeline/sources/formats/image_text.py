"""Images with captions: `a.txt` beside `a.jpg`, or a `metadata.jsonl` that names each image (`file_name`)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from data_pipeline.document import Document
from data_pipeline.images.suffixes import MEMBERS
from data_pipeline.sources.formats.json_lines import read_json_lines
from data_pipeline.sources.formats.text import read_text
from data_pipeline.sources.source import Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord
from megaptm.storage import is_remote, validate_file_name

METADATA = "metadata.jsonl"


def read_image_text(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    file = span.file
    if is_metadata(file.name):
        yield from _read_metadata(span, handler)
    elif is_image(file.name):
        raise Unreadable("no caption", "has no caption beside it", f"write one to {PurePosixPath(file.name).stem}.txt")
    elif file.image is None:
        raise Unreadable("no image", "is a caption without an image beside it", "add the image")
    else:
        for document in read_text(span, handler):
            yield replace(document, text=document.text.strip(), notes={**document.notes, "image": file.image})


def is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in MEMBERS


def is_metadata(name: str) -> bool:
    return PurePosixPath(name).name == METADATA


def _read_metadata(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    source = span.file.source
    with_name = replace(source, keep=(*source.keep, "file_name"))
    for document in read_json_lines(replace(span, file=replace(span.file, source=with_name)), handler):
        notes = dict(document.notes)
        image = notes.pop("file_name", None)
        try:
            yield replace(document, notes={**notes, "image": _image_path(span.file.path, image)})
        except UnreadableRecord as error:
            handler.handle_record(document.source, f"({document.source})", error, document.text.encode())


def _image_path(path: str, image: object) -> str:
    """Return the path or URL of an image. A path is relative to the metadata's folder and may not leave that folder."""
    if not isinstance(image, str) or not image:
        raise UnreadableRecord("no image", "has no image in its field `file_name`", "set it")
    if is_remote(image):
        return image
    try:
        for name in PurePosixPath(image).parts:
            validate_file_name(name)
    except ValueError:
        raise UnreadableRecord(
            "no image",
            "names an image outside of its folder in its field `file_name`",
            "move the image into the folder",
        ) from None
    return posixpath.join(posixpath.dirname(path), image)
