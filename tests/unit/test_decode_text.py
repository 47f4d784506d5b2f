"""Numbers, text, JSON and arrays: what is accepted, what is refused, and which decoder a field gets."""

from __future__ import annotations

import io
import json as parser
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.decode import Decoder, Image, Npy, RandomResizedCrop, default_for, json, npy, resolve
from stoker.errors import SampleError, UsageError

LAW = settings(deadline=None, derandomize=True)


def saved(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    """The array as numpy.save writes it."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("spec", "raw", "expected"),
    [
        (int, b"7", 7), (int, b" 7\n", 7), (int, b"-12", -12), (int, b"+3\r\n", 3),
        (int, b"9223372036854775807", 2**63 - 1),
        (float, b"1.5", 1.5), (float, b" -2e-3 ", -0.002), (float, b".5", 0.5), (float, b"3.", 3.0),
        (float, b"inf", np.inf),
        (str, "zu spät 東京".encode(), "zu spät 東京"), (str, b"", ""), (bytes, b"\x00\xff", b"\x00\xff"),
        (json, b'{"a": [1, null]}', {"a": [1, None]}), (lambda raw: raw[::-1], b"abc", b"cba"),
    ],
)  # fmt: skip
def test_fields_are_decoded(spec: object, raw: bytes, expected: object) -> None:
    """From bytes and memoryviews alike, by decoders that can be pickled."""
    decoder = resolve(spec)
    assert decoder.decode(raw, None, 0) == expected
    assert decoder.decode(memoryview(raw), None, 0) == expected
    if spec in (int, float, str, bytes, json):
        assert pickle.loads(pickle.dumps(decoder)) == decoder


@pytest.mark.parametrize(
    ("spec", "raw"),
    [
        (int, b""), (int, b"7.0"), (int, b"1_000"), (int, "٣".encode()), (int, b"0x10"), (int, b"7 8"), (int, b"7\x00"),
        (int, b"9223372036854775808"), (int, b"1" * 5000), (int, (7).to_bytes(8, "little")), (float, b""),
        (float, b"1_0.0"),
        (float, b"1e"), (float, b"."), (float, b"infinity"), (float, b"0x1p3"), (str, b"ab\xff"),
        (str, b"\xed\xa0\x80"),
        (json, b""), (json, b"{"), (json, b"[" * 100_000), (json, b"\xff"), (json, b"{} x"),
    ],
)  # fmt: skip
def test_other_bytes_are_sample_errors(spec: object, raw: bytes) -> None:
    """The message says what was expected or found, in less than 500 characters."""
    with pytest.raises(SampleError) as caught:
        resolve(spec).decode(raw, None, 0)
    assert ("expected" in caught.value.message or "found" in caught.value.message) and len(caught.value.message) < 500


def test_numbers_go_into_their_slot() -> None:
    """With `out` a number is written there, and shape and dtype say what the slot must be."""
    for spec, kind, raw in ((int, np.int64, b"41"), (float, np.float64, b"41")):
        decoder = resolve(spec)
        slots = np.zeros((3, *(decoder.shape or ())), decoder.dtype)
        assert slots.dtype == kind
        assert decoder.decode(raw, slots[1:2].reshape(()), 0) is None
        assert slots.tolist() == [0, 41, 0]


@LAW
@given(st.integers(-(2**63), 2**63 - 1))
def test_every_integer_survives(value: int) -> None:
    """What str() writes, the decoder reads."""
    assert resolve(int).decode(str(value).encode(), None, 0) == value


@LAW
@given(st.floats())
def test_every_float_survives(value: float) -> None:
    """What repr() writes, the decoder reads, to the last bit."""
    assert np.array_equal(resolve(float).decode(repr(value).encode(), None, 0), value, equal_nan=True)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4), np.array(7.5), np.zeros((0, 3), np.uint8), np.array(["a", "bc"]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(4, dtype=">i2"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
)  # fmt: skip
def test_arrays_are_read_as_numpy_reads_them(array: np.ndarray[Any, Any]) -> None:
    """Same shape, type and values as numpy.load, in memory of its own."""
    raw = bytearray(saved(array))
    found = npy.decode(memoryview(raw), None, 0)
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)
    raw[-1:] = b"\x55"
    assert np.array_equal(found, array)


def test_an_array_with_a_fixed_shape_goes_into_its_slot() -> None:
    """Npy(shape, dtype) writes into `out` and refuses every other shape or type."""
    tokens = np.arange(8, dtype=np.int32)
    decoder = Npy((8,), np.dtype(np.int32))
    slots = np.zeros((2, 8), np.int32)
    assert decoder.decode(saved(tokens), slots[1], 0) is None
    assert np.array_equal(slots, np.stack([np.zeros(8, np.int32), tokens]))
    for other in (tokens[:7], tokens.astype(np.int64), tokens.reshape(2, 4)):
        with pytest.raises(SampleError, match="expected int32"):
            decoder.decode(saved(other), slots[1], 0)
    with pytest.raises(UsageError):
        Npy((8,))


def crafted(header: str) -> bytes:
    """An .npy of eight zero bytes with this header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\x93NUMPY", b"\x93NUMPY\x09\x00", saved(np.arange(9))[:-1], saved(np.arange(9)) + b"x",
        saved(np.arange(9))[:30], saved(np.array([{"a": 1}]), allow_pickle=True),
        crafted("{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846976,)}"),
        crafted("{'descr': '<i8', 'fortran_order': False, 'shape': (-1, -1)}"), crafted("{'descr': '<i8'"),
        crafted("{'descr': 'O', 'fortran_order': False, 'shape': (1,)}"), crafted("[" * 3000),
        crafted("{'descr': '<i8', 'fortran_order': False, 'shape': (True,)}"),
        crafted("{'descr': ('<i8', (9999999999,)), 'fortran_order': False, 'shape': (1,)}"),
    ],
)  # fmt: skip
def test_lying_arrays_are_refused(raw: bytes) -> None:
    """Cut, padded, pickled or absurd arrays are errors, and nothing is allocated by what they promise."""
    with pytest.raises(SampleError, match="npy"):
        npy.decode(raw, None, 0)


@LAW
@given(cut=st.integers(0, 200), at=st.integers(0, 199), value=st.integers(0, 255))
def test_damaged_arrays_are_read_or_refused(cut: int, at: int, value: int) -> None:
    """A changed byte or a cut gives an array of the right size or a SampleError."""
    raw = bytearray(saved(np.arange(9, dtype=np.int64)))
    raw[at] = value
    try:
        found = npy.decode(bytes(raw[: len(raw) - cut]), None, 0)
    except SampleError:
        return
    assert found.nbytes <= 80


@pytest.mark.parametrize(
    ("field", "raw", "expected"),
    [
        ("cls", b"3", 3), ("id", b"3", 3), ("txt", b"hi", "hi"), ("caption", b"hi", "hi"), ("json", b"[1]", [1]),
        ("pyd", b"\x80.", b"\x80."),
        ("pkl", b"\x80.", b"\x80."), ("pth", b"x", b"x"), ("tokens", b"x", b"x"), ("meta.JSON", b"[1]", [1]),
    ],
)  # fmt: skip
def test_fields_have_a_decoder_by_name(field: str, raw: bytes, expected: object) -> None:
    """Known extensions are decoded, pickles and the unknown stay bytes."""
    assert default_for(field).decode(raw, None, 0) == expected


def test_image_fields_are_pictures_by_default() -> None:
    """`image`, every image extension, alternatives and inner extensions give Image()."""
    for field in ("image", "jpg", "JPEG", "png;jpg", "seg.png", "webp", "avif"):
        assert default_for(field) == Image()
    assert isinstance(default_for("npy"), Npy)


@pytest.mark.parametrize("spec", [None, 7, "int", list, RandomResizedCrop, object()])
def test_what_decodes_nothing_is_a_usage_error(spec: object) -> None:
    """A value, a foreign class or a decoder's class itself is refused before anything runs."""
    with pytest.raises(UsageError, match="a field is decoded by"):
        resolve(spec)


def test_decoders_pass_unchanged() -> None:
    """A Decoder stands for itself."""
    crop = RandomResizedCrop(8)
    assert resolve(crop) is crop and isinstance(crop, Decoder)
    assert parser.loads(b"1") == resolve(json).decode(b"1", None, 0)
