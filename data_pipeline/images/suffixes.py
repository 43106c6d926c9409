"""Suffixes of files of images: the one list of them."""

MEMBERS = {
    ".jpg": "jpg",
    ".jpeg": "jpg",
    ".png": "png",
    ".webp": "webp",
    ".gif": "gif",
    ".bmp": "bmp",
    ".tif": "tif",
    ".tiff": "tif",
}
"""Suffix of an image's file, in lower case -> suffix of its member in a shard."""
