"""Suffixes of image files: the only list."""

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
"""Lower-case suffix of an image file -> suffix of its member in a shard."""
