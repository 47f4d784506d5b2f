"""Field bytes → values: pictures, numbers, text, arrays."""

from stoker.decode.array import Npy
from stoker.decode.base import Decoder
from stoker.decode.choose import default_for, prepare, resolve, takes_pixels
from stoker.decode.image import CenterCrop, Image, RandomResizedCrop, Resize
from stoker.decode.pixels import quiet_pillow
from stoker.decode.tensor import Pt
from stoker.decode.text import Json

json = Json()
"""Decodes a JSON document."""
npy = Npy()
"""Decodes an array of any shape; call `Npy(shape, dtype)` for one that is always the same."""
pt = Pt()
"""Decodes a torch tensor of any shape, without unpickling; `Pt(shape, dtype)` for one that is always the same."""

__all__ = [
    "Decoder", "resolve", "default_for", "prepare", "Image", "Resize", "CenterCrop", "RandomResizedCrop", "Json",
    "json", "Npy", "npy", "Pt", "pt", "quiet_pillow", "takes_pixels",
]  # fmt: skip
