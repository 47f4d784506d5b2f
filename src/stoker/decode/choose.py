"""Which decoder a field gets: the one that the caller names, else one by how the format says that it is coded, else one
by the field's extension."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stoker.decode.array import Npy
from stoker.decode.base import Decoder
from stoker.decode.image import CenterCrop, Image, RandomResizedCrop, Resize
from stoker.decode.resize import resize
from stoker.decode.text import Bytes, Call, Json, Number, Text
from stoker.errors import UsageError
from stoker.format import IMAGE_FIELDS

_BY_TYPE: dict[object, Decoder] = {int: Number("int"), float: Number("float"), str: Text(), bytes: Bytes()}
_BY_NAME: dict[str, Decoder] = {
    **dict.fromkeys(("image", *IMAGE_FIELDS), Image()),
    **dict.fromkeys(("cls", "int", "id"), Number("int")),
    **dict.fromkeys(("txt", "text", "caption"), Text()),
    "json": Json(),
    "npy": Npy(),
}


def resolve(spec: object) -> Decoder:
    """The decoder that *spec* means: int, float, str, bytes, a Decoder, or a function of bytes."""
    if isinstance(spec, type):
        known = _BY_TYPE.get(spec)
        if known is not None:
            return known
        raise UsageError(
            f"a field is decoded by int, float, str, bytes, a decoder or a function, found the class {spec.__name__}",
            f"make a decoder of it: {spec.__name__}(…)" if hasattr(spec, "decode") else None,
        )
    if isinstance(spec, Decoder):
        return spec
    if callable(spec):
        return Call(spec)
    raise UsageError(f"a field is decoded by int, float, str, bytes, a decoder or a function, found {spec!r}")


_BY_CODEC: dict[str, Decoder] = {"mds:jpeg": Image(), "mds:png": Image(), "mds:pkl": Bytes()}
"""By the index's codec: what an MDS column holds, its encoding says and not its name."""
_OF_PICTURES = Image | Resize | CenterCrop | RandomResizedCrop


def takes_pixels(decoder: Decoder) -> bool:
    """Whether the decoder goes on from pixels too, where a format keeps these: a value that is no bytes any more."""
    return isinstance(decoder, _OF_PICTURES)


def prepare(decoders: Iterable[Decoder]) -> None:
    """Do now what the first sample would wait for: where pictures are resized, the import of torch (1 to 2 s)."""
    if any(isinstance(decoder, Resize | CenterCrop | RandomResizedCrop) for decoder in decoders):
        resize(np.zeros((4, 4, 3), np.uint8), np.zeros((2, 2, 3), np.uint8))


def default_for(field: str, codec: str = "") -> Decoder:
    """The decoder of a field: by its *codec* in the index where that says enough, else by its name as an extension.

    Of `a;b` the first counts, of `seg.png` the last part. What is not known is given as bytes: pickles (.pyd, .pkl,
    .pth) among them, which are never loaded.
    """
    if codec in _BY_CODEC:
        return _BY_CODEC[codec]
    name = field.split(";")[0].rsplit(".", 1)[-1].strip().lower()
    found = _BY_NAME.get(name, _BY_TYPE[bytes])
    return Text() if codec == "mds:str" and isinstance(found, Image) else found  # where a picture lies, not a picture
