"""Field bytes → values: pictures, numbers, text, arrays."""

from stoker.decode.array import Npy
from stoker.decode.base import Decoder
from stoker.decode.choose import default_for, prepare, resolve
from stoker.decode.image import CenterCrop, Image, RandomResizedCrop, Resize
from stoker.decode.pixels import quiet_pillow
from stoker.decode.text import Json

json = Json()
"""Decodes a JSON document."""
npy = Npy()
"""Decodes an array of any shape; call `Npy(shape, dtype)` for one that is always the same."""

__all__ = [
    "Decoder", "resolve", "default_for", "prepare", "Image", "Resize", "CenterCrop", "RandomResizedCrop", "Json",
    "json", "Npy", "npy", "quiet_pillow",
]  # fmt: skip
