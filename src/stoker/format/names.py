"""What a file's name says: key, field, whether it is an image, whether it is no data at all.

Two rules, because two worlds meet. In a WebDataset shard the key ends at the *first* dot of the base name and `jpeg`
stays `jpeg`; a raw file's field is what follows the *last* dot, and `jpeg` becomes `jpg`. Extensions are lower-cased,
keys never.
"""

from __future__ import annotations

import re

IMAGE_FIELDS = (
    "jpg", "jpeg", "png", "webp", "jpe", "jfif", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "avif", "jp2",
    "tga", "mpo", "apng",
)  # fmt: skip
"""Field names that hold an image, in the order in which `image` looks for them."""
_IMAGES = frozenset(IMAGE_FIELDS)
_JPEG = frozenset(("jpeg", "jpe", "jfif"))
STOKER_FOLDER = "_stoker"
"""Where stoker keeps what it writes beside a dataset; never data."""
KEY_FIELD = "__key__"
"""The column or feature in which formats whose samples have no names keep them."""
_HIDDEN = re.compile(
    r"(?:^|/)(?:\.(?!\.?(?:/|\Z))|__MACOSX(?:/|\Z)|(?i:thumbs\.db|desktop\.ini)\Z)|^" + STOKER_FOLDER + r"(?:/|\Z)"
)


def is_image(field: str) -> bool:
    """Whether a field of that name holds an image."""
    return field in _IMAGES


def is_hidden(key: str) -> bool:
    """Whether a path is nobody's data: a dot file, what macOS or Windows leave behind, or stoker's own folder."""
    return _HIDDEN.search(key) is not None


def is_confined(path: str) -> bool:
    """Whether a path stays inside the folder it is relative to."""
    return not path.startswith("/") and ".." not in path.split("/")


def split_member(name: str) -> tuple[str, str]:
    """Key and field of a member of a WebDataset shard; the field is "" where the base name has no extension."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def split_file(path: str) -> tuple[str, str]:
    """Path without extension, and field of a raw file; the field is "" where there is no extension."""
    folder, slash, base = path.rpartition("/")
    stem, dot, extension = base.rpartition(".")
    if not dot or not stem:
        return path, ""
    field = extension.lower()
    return f"{folder}{slash}{stem}", "jpg" if field in _JPEG else field


def printable(name: str) -> str:
    """The name fit for a message: control characters, direction marks and undecodable bytes are escaped."""
    return "".join(
        char if char.isprintable() else char.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        if "\udc80" <= char <= "\udcff" else char.encode("unicode_escape").decode("ascii")
        for char in name
    )  # fmt: skip


def row_key(row: int) -> str:
    """The key of a sample that has none: its row in the shard."""
    return f"{row:08d}"
