"""Source format of images with captions: `a.txt` beside `a.jpg`, or a `metadata.jsonl` that names each image
(`file_name`)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from data_pipeline.document import ATTACHED, Document
from data_pipeline.sources.files import input_file
from data_pipeline.sources.formats import Format
from data_pipeline.sources.formats.json_lines import read_json_lines
from data_pipeline.sources.formats.text import read_text
from data_pipeline.sources.listing import Listing
from data_pipeline.sources.source import InputFile, Source, Span
from data_pipeline.sources.unreadable import Unreadable, UnreadableHandler, UnreadableRecord
from megaptm.families.vit.corpus.suffixes import MEMBERS
from megaptm.storage import is_remote, validate_file_name

METADATA = "metadata.jsonl"


def _read_image_text(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    file = span.file
    if _is_metadata_file(file.name):
        yield from _read_metadata(span, handler)
    elif _is_image(file.name):
        raise Unreadable("no caption", "has no caption beside it", f"write one to {PurePosixPath(file.name).stem}.txt")
    elif file.attached is None:
        raise Unreadable("no image", "is a caption without an image beside it", "add the image")
    else:
        for document in read_text(span, handler):
            yield replace(document, text=document.text.strip(), notes={**document.notes, ATTACHED: file.attached})


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in MEMBERS


def _is_metadata_file(name: str) -> bool:
    return PurePosixPath(name).name == METADATA


def _read_metadata(span: Span, handler: UnreadableHandler) -> Iterator[Document]:
    source = span.file.source
    with_name = replace(source, keep=(*source.keep, "file_name"))
    for document in read_json_lines(replace(span, file=replace(span.file, source=with_name)), handler):
        notes = dict(document.notes)
        image = notes.pop("file_name", None)
        try:
            yield replace(document, notes={**notes, ATTACHED: _image_path(span.file.path, image)})
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


def _find_image_texts(source: Source, listing: Listing) -> Iterator[InputFile]:
    """Yield metadata files, which describe all files below their folder, and in other folders captions with images."""
    described = {PurePosixPath(file.name).parent for file in listing.files if _is_metadata_file(file.name)}
    loose = [file for file in listing.files if described.isdisjoint(PurePosixPath(file.name).parents)]
    images = {_without_suffix(file.name): file.path for file in loose if _is_image(file.name)}
    captions = {_without_suffix(file.name) for file in loose if file.name.lower().endswith(".txt")}
    for file in listing.files:
        if _is_metadata_file(file.name):
            yield input_file(file, source)
    for file in loose:
        stem = _without_suffix(file.name)
        if file.name.lower().endswith(".txt"):
            yield input_file(file, source, images.get(stem))
        elif _is_image(file.name) and stem not in captions:
            yield input_file(file, source)  # counted later as an image without a caption


def _without_suffix(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


FORMATS = {
    "image-text": Format(
        _read_image_text,
        frozenset(),
        find_files=_find_image_texts,
        attached=MEMBERS,
        remedy="for images, use `megaptm corpus images`",
    )
}
