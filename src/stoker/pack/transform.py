"""What happens to a sample on its way into a shard: pictures made smaller or encoded anew, then the user's function.

The user's function takes one sample, a dict of field → value with `__key__`, and gives none (None), one (a dict), or
several (a list, or it is a generator). Fields arrive as bytes, `cls` of a label rule as an int. It runs in threads.
Re-encoded pictures are upright RGB of 8 bits: alpha is dropped, EXIF with it.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import PIL.Image

from stoker.decode.augment import Box, short_side
from stoker.decode.pixels import cut
from stoker.decode.resize import pillow_kernel
from stoker.errors import SampleError, UsageError
from stoker.format import is_image

Sample = dict[str, Any]
Transform = Callable[[Sample], Sample | Iterable[Sample] | None]

ENCODERS = {"jpeg": ("JPEG", "jpg", 90), "webp": ("WEBP", "webp", 90), "png": ("PNG", "png", None)}
"""Name of a transcoding → Pillow's format, the field, the quality when none is given."""
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
    """Makes every picture of a sample smaller, or another kind of file, or both."""

    resize_short: int | None
    """Shorter side in pixels; smaller pictures stay as they are."""
    transcode: Encoding | None

    def apply(self, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """The fields with pictures encoded anew where that is needed."""
        if self.resize_short is None and self.transcode is None:
            return dict(fields)
        done: dict[str, bytes] = {}
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


def load_transform(spec: str | Transform | None) -> tuple[str, Transform | None]:
    """Name and function of "module:function" or of a function itself."""
    if spec is None:
        return "", None
    if not isinstance(spec, str):
        named = spec if hasattr(spec, "__qualname__") else type(spec)
        return f"{named.__module__}:{named.__qualname__}", spec
    module, _, name = spec.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"transform {spec!r}: {error}", "write module:function; the module must be importable"
        ) from error
    if not callable(found):
        raise UsageError(f"transform {spec!r} is no function, found {type(found).__name__}")
    return spec, found


class _Naming:
    """Adds the sample's name to whatever a user's function raises."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"stoker: while the transform had sample {self._key!r}")


def run_transform(transform: Transform, sample: Sample) -> list[Sample]:
    """The samples that *transform* makes of one."""
    key = sample["__key__"]
    with _Naming(key):
        made = transform(sample)
        if made is None:
            return []
        several = [made] if isinstance(made, dict) else list(made)
    for one in several:
        if not isinstance(one, dict):
            raise UsageError(
                f"the transform gave {type(one).__name__} for sample {key!r}, expected dicts, a list or None"
            )
    return several


def encode_fields(sample: Sample) -> dict[str, bytes]:
    """What is stored of a sample: bytes as they are, text as UTF-8, numbers in digits, else JSON and .npy."""
    fields = {name: _encode(name, value, sample) for name, value in sample.items() if not name.startswith("__")}
    if not fields:
        raise UsageError(f"the transform left sample {sample.get('__key__')!r} without fields", "give None to drop it")
    return {name: data for name, data in fields.items() if data is not None}


def _encode(field: str, value: Any, sample: Sample) -> bytes | None:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool | int | float | np.integer | np.floating):
        return str(value if not isinstance(value, bool) else int(value)).encode()
    if isinstance(value, dict | list | tuple):
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise SampleError(f"field {field!r} of {sample.get('__key__')!r} is no JSON: {error}") from None
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        if is_image(field):
            return Encoding.parse(_KEPT.get(field, "png")).encode(value)[1]
        file = io.BytesIO()
        np.save(file, value)
        return file.getvalue()
    raise UsageError(
        f"field {field!r} of sample {sample.get('__key__')!r} is a {type(value).__name__}",
        "a transform gives bytes, text, numbers, lists, dicts or NumPy arrays",
    )
