"""What happens to a sample on its way into a shard: pictures made smaller, encoded anew or decoded for good, then the
user's function.

The user's function takes one sample, a dict of field → value with `__key__`, and gives none (None), one (a dict), or
several (a list, or it is a generator). Fields arrive as bytes, `cls` of a label rule as an int. It runs in threads.
Re-encoded pictures are upright RGB of 8 bits: alpha is dropped, EXIF with it.

Whatever goes wrong in it or with what it gives is a TransformError, which names the sample and counts as a bad one;
only `sys.exit` ends the pack always.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import PIL.Image

from stoker.decode.augment import Box, central_box, short_side
from stoker.decode.pixels import cut
from stoker.decode.resize import pillow_kernel
from stoker.errors import SampleError, StokerError, UsageError, reason_of
from stoker.format import ColumnValue, is_image
from stoker.format.names import printable
from stoker.format.webdataset import check_name
from stoker.pack.cut import clean_key

IMAGE = "image"
"""The field of a picture that was decoded for good."""
Sample = dict[str, Any]
Transform = Callable[[Sample], Sample | Iterable[Sample] | None]

ENCODERS = {"jpeg": ("JPEG", "jpg", 90), "webp": ("WEBP", "webp", 90), "png": ("PNG", "png", None)}
"""Name of a transcoding → Pillow's format, the field, the quality when none is given."""
VALUE_BYTES_MAX = 4_096
"""A stored field that is longer is no metadata: its column stays empty."""
_PLAIN = re.compile(r"\s*[+-]?[0-9.]{1,64}(?:[eE][+-]?[0-9]{1,4})?\s*", re.ASCII)
"""A number as `decode.Number` reads it."""
_KEPT = {"jpg": "jpeg:95", "jpeg": "jpeg:95", "webp": "webp:95"}
"""How a picture that must be encoded again stays what it was; what is not here becomes png."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How pictures are encoded."""

    kind: str
    quality: int | None

    @classmethod
    def parse(cls, text: str) -> Encoding:
        """From "jpeg:90", "webp:80", "png"."""
        kind, _, quality = text.partition(":")
        if kind not in ENCODERS or (
            quality and (kind == "png" or not quality.isdigit() or not 1 <= int(quality) <= 100)
        ):
            raise UsageError(f"unknown encoding {text!r}", "write jpeg:90, webp:80 (quality 1 to 100) or png")
        return cls(kind, int(quality) if quality else ENCODERS[kind][2])

    def encode(self, pixels: np.ndarray[Any, Any]) -> tuple[str, bytes]:
        """Field name and bytes of a picture uint8 [height, width, 3]."""
        name, field, _ = ENCODERS[self.kind]
        file = io.BytesIO()
        PIL.Image.fromarray(pixels).save(file, name, **({} if self.quality is None else {"quality": self.quality}))
        return field, file.getvalue()


@dataclass(frozen=True, slots=True)
class Recode:
    """Makes every picture of a sample smaller, or another kind of file, or both; or pixels, once and for all."""

    resize_short: int | None
    """Shorter side in pixels; smaller pictures stay as they are."""
    transcode: Encoding | None
    predecode: int | None = None
    """Side in pixels of the square that is stored of every picture, uint8 [side, side, 3], as the field `image`: its
    shorter side resized to that, the middle kept; smaller pictures are enlarged."""

    def apply(self, fields: Mapping[str, bytes]) -> dict[str, Any]:
        """The fields with pictures encoded anew, or decoded, where that is asked for."""
        if self.predecode is not None:
            return {
                IMAGE if is_image(name) else name: _square(data, self.predecode) if is_image(name) else data
                for name, data in fields.items()
            }
        if self.resize_short is None and self.transcode is None:
            return dict(fields)
        done: dict[str, Any] = {}
        for name, data in fields.items():
            field, encoded = self._picture(name, data) if is_image(name) else (name, data)
            done.setdefault(field, encoded)
        return done

    def _picture(self, field: str, data: bytes) -> tuple[str, bytes]:
        whole, target = cut(data, lambda height, width: (Box(0, 0, height, width), None))
        height, width = whole.shape[:2]
        if self.resize_short is not None and min(height, width) > self.resize_short:
            target = short_side(height, width, self.resize_short)
        if target is None and self.transcode is None:
            return field, data
        pixels = whole
        if target is not None:
            pixels = np.empty((*target, 3), np.uint8)
            pillow_kernel(whole, pixels)
        encoding = self.transcode or Encoding.parse(_KEPT.get(field, "png"))
        return encoding.encode(np.ascontiguousarray(pixels))


def _square(data: bytes, side: int) -> np.ndarray[Any, Any]:
    """The middle square of a picture, uint8 [side, side, 3], made of all its pixels: what is kept gets no shortcut."""
    whole, _ = cut(data, lambda height, width: (central_box(height, width, 1.0), None))
    pixels = np.empty((side, side, 3), np.uint8)
    pillow_kernel(whole, pixels)
    return pixels


def load_transform(spec: str | Transform | None) -> tuple[str, Transform | None]:
    """Name and function of "module:function" or of a function itself."""
    if spec is None:
        return "", None
    if not isinstance(spec, str):
        named = spec if hasattr(spec, "__qualname__") else type(spec)
        return f"{named.__module__}:{named.__qualname__}", spec
    module, _, name = spec.partition(":")
    with _Converting(f"transform {spec!r}: cannot be imported", UsageError):
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"transform {spec!r} is no function, found {type(found).__name__}")
    return spec, found


class TransformError(SampleError):
    """The user's function failed on a sample, or gave what cannot be stored."""

    reason = "transform failed"


class _Converting:
    """Turns whatever a user's code raises into an error of the house that begins with *what*.

    An exception becomes a *kind*. `sys.exit` means the end of everything, so it is no bad sample. Ctrl-C passes.
    """

    def __init__(self, what: str, kind: type[StokerError] = TransformError) -> None:
        self._what, self._kind = what, kind

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TransformError):
            return
        if isinstance(error, Exception):
            reason = error.message if isinstance(error, SampleError | UsageError) else reason_of(error)
            raise self._kind(f"{self._what}: {reason}") from error
        if isinstance(error, SystemExit):
            raise StokerError(f"{self._what}: it called sys.exit({error.code!r})") from error


def run_transform(name: str, transform: Transform, sample: Sample) -> list[Sample]:
    """The samples that *transform*, which is called *name*, makes of one. TransformError for all that goes wrong."""
    what = f"transform {name} with sample {printable(sample['__key__'])!r}"
    with _Converting(what):
        made: Any = transform(sample)
        if made is None:
            return []
        if isinstance(made, dict):
            return [made]
        if not isinstance(made, Iterable) or isinstance(made, str | bytes):
            raise _gave(what, made)
        several = list(made)
        for one in several:
            if not isinstance(one, dict):
                raise _gave(what, one)
        return several


def _gave(what: str, value: Any) -> TransformError:
    return TransformError(f"{what}: it gave {type(value).__name__}, expected a dict, a list of dicts or None")


def stored_sample(
    name: str, key: str, sample: Sample, *, given: str, encode: Callable[[Sample], dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """Key and fields as they are stored of a sample that the transform *name* made of the one whose key was *given*.

    *key* is the key that a sample gets which keeps its own; *encode* gives the fields as they are stored.
    """
    with _Converting(f"transform {name} with sample {printable(given)!r}: what it gave cannot be stored"):
        own = sample.get("__key__")
        if own is not None and not isinstance(own, str | int):
            raise SampleError(f"its __key__ is a {type(own).__name__}, expected text")
        _check_names(sample)
        fields = encode(sample)
        if not fields:
            raise SampleError("no field is left; None drops a sample")
        final = key if own in (None, given) else clean_key(str(own))
        for field in fields:
            check_name(final, field)
        return final, fields


def _check_names(sample: Sample) -> None:
    for name in sample:
        if not isinstance(name, str):
            raise SampleError(f"field names are text, found {name!r:.80}")


def encode_fields(sample: Sample) -> dict[str, bytes]:
    """What is stored of a sample: bytes as they are, text as UTF-8, numbers in digits, else JSON and .npy."""
    _check_names(sample)
    stored: dict[str, bytes] = {}
    for name, value in sample.items():
        if type(value) is bytes and not name.startswith("__"):
            stored[name] = value
        elif type(value) is int and not name.startswith("__"):
            stored[name] = b"%d" % value
        elif not name.startswith("__") and value is not None:
            with _Converting(f"field {name!r}", SampleError):
                stored[name] = _encode(name, value)
    if not stored:
        raise SampleError("no field is left; None drops a sample")
    return stored


def _encode(field: str, value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool | int | float | np.integer | np.floating):
        return str(value if not isinstance(value, bool) else int(value)).encode()
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        if is_image(field):
            return Encoding.parse(_KEPT.get(field, "png")).encode(value)[1]
        file = io.BytesIO()
        np.save(file, value)
        return file.getvalue()
    raise SampleError(f"a {type(value).__name__}, expected bytes, text, a number, a list, a dict or a NumPy array")


def stored_value(data: bytes | np.ndarray[Any, Any], kind: type) -> ColumnValue:
    """What a stored field says, as the value of a metadata column of type *kind*; None when it says no such value."""
    if isinstance(data, np.ndarray):
        data = str(data.item()).encode() if not data.ndim and data.dtype.kind in "iuf" else b""
    try:
        text = data.decode()
        if len(data) > VALUE_BYTES_MAX or (kind is not str and not _PLAIN.fullmatch(text)):
            return None
        if kind is bool:
            return {"0": False, "1": True}.get(text.strip())
        value: ColumnValue = kind(text)
    except ValueError:
        return None
    return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else None
