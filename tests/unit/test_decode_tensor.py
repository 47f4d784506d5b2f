"""Tensors are read without torch and without unpickling: every kind that NumPy has, and nothing but one tensor."""

from __future__ import annotations

import collections
import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.decode import Pt, default_for
from stoker.errors import SampleError, UsageError
from support_dataset import write_shards


def saved(value: object, **options: Any) -> bytes:
    """As torch.save writes it."""
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def repacked(raw: bytes, change: Callable[[str, bytes], bytes], *, method: int = zipfile.ZIP_STORED) -> bytes:
    """The zip with its members changed, its checksums right again."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as before, zipfile.ZipFile(out, "w", method) as after:
        for name in before.namelist():
            after.writestr(name, change(name, before.read(name)))
    return out.getvalue()


TENSORS = {
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(5),
    "bool": torch.ones(2, dtype=torch.bool),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "uint16": torch.arange(5).to(torch.uint16),
    "half": torch.arange(5).half(),
    "complex": torch.randn(2, 2, dtype=torch.complex64),
    "slice": torch.arange(10)[3:7],
    "gradient": torch.ones(3, requires_grad=True),
    "bytes": torch.arange(6, dtype=torch.uint8).reshape(1, 2, 3),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back(name: str) -> None:
    """Element type, shape and values are torch's own, from bytes and memoryviews, and the copy can be written to."""
    tensor = TENSORS[name]
    for raw in (saved(tensor), memoryview(saved(tensor))):
        found = Pt().decode(raw, None, 0)
        expected = tensor.detach().numpy()
        assert found is not None and found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
        assert found.flags.writeable


@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(["int8", "int16", "int64", "float32", "float64"]))
def test_every_shape_comes_back(shape: list[int], dtype: str) -> None:
    """Whatever the number of dimensions, zeros among the sides."""
    tensor = torch.arange(int(np.prod(shape))).to(getattr(torch, dtype)).reshape(shape)
    found = Pt().decode(saved(tensor), None, 0)
    assert found is not None
    np.testing.assert_array_equal(found, tensor.numpy())
    assert found.dtype == dtype and list(found.shape) == shape


def test_big_endian_elements_are_read_as_such() -> None:
    """The zip says the byte order of its elements."""
    raw = repacked(
        saved(torch.tensor([1.0, 2.5])),
        lambda name, data: b"big" if name.endswith("byteorder")
        else np.frombuffer(data, "<f4").astype(">f4").tobytes() if "/data/" in name else data,
    )  # fmt: skip
    found = Pt().decode(raw, None, 0)
    assert found is not None and found.tolist() == [1.0, 2.5]


def evil(path: Path) -> bytes:
    """A zip whose pickle would make a file."""

    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(path),)

    return repacked(
        saved(torch.ones(1)), lambda name, data: pickle.dumps(Evil(), 2) if name.endswith("data.pkl") else data
    )


@pytest.mark.parametrize(
    "value",
    [
        {"a": torch.ones(2)}, [torch.ones(2)], (torch.ones(2),), 5, "text", None, collections.OrderedDict(),
        torch.ones(1).expand(1000), torch.ones(3, dtype=torch.bfloat16), torch.ones(2).to_sparse(), np.ones(2),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)  # fmt: skip
def test_all_but_one_dense_tensor_is_refused(value: object) -> None:
    """Containers, numbers, views that repeat, element types that NumPy lacks: the error says what was found."""
    with pytest.raises(SampleError, match="pt: ") as caught:
        Pt().decode(saved(value), None, 0)
    assert caught.value.hint is not None and len(caught.value.message) <= 400


def test_a_hostile_pickle_is_never_obeyed(tmp_path: Path) -> None:
    """It is read as data: what it would call is named and does not happen."""
    with pytest.raises(SampleError, match="would call"):
        Pt().decode(evil(tmp_path / "made"), None, 0)
    assert not (tmp_path / "made").exists()


def test_damaged_bytes_are_sample_errors() -> None:
    """Cut anywhere, a bit flipped anywhere that matters, compressed, of the old format, no zip at all."""
    raw = saved(torch.arange(8.0))
    for cut in range(0, len(raw), 37):
        with pytest.raises(SampleError):
            Pt().decode(raw[:cut], None, 0)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        at = raw.index(np.arange(8, dtype="<f4").tobytes())
        assert archive.namelist()
    flipped = bytearray(raw)
    flipped[at + 9] ^= 1
    with pytest.raises(SampleError, match="damaged"):
        Pt().decode(bytes(flipped), None, 0)
    same = repacked(raw, lambda name, data: data, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(SampleError, match="compressed"):
        Pt().decode(same, None, 0)
    for other in (b"", b"PK", saved(torch.ones(2), _use_new_zipfile_serialization=False), pickle.dumps(5)):
        with pytest.raises(SampleError):
            Pt().decode(other, None, 0)


@given(st.binary(max_size=64), st.integers(0, 400))
def test_any_pickle_ends_in_a_sample_error_or_an_array(noise: bytes, at: int) -> None:
    """Whatever the program is."""
    whole = saved(torch.ones(2))

    def change(name: str, data: bytes) -> bytes:
        return data[:at] + noise + data[at + len(noise) :] if name.endswith("data.pkl") else data

    try:
        found = Pt().decode(repacked(whole, change), None, 0)
    except SampleError:
        return
    assert isinstance(found, np.ndarray) and found.size <= 2


def test_a_fixed_shape_goes_to_its_slot() -> None:
    """As with npy: shape and dtype together, another tensor is a bad sample."""
    decoder, slot = Pt((2,), np.dtype(np.float32)), np.zeros(2, np.float32)
    assert decoder.decode(saved(torch.tensor([1.0, 2.0])), slot, 0) is None
    assert slot.tolist() == [1.0, 2.0]
    with pytest.raises(SampleError, match=r"pt: expected float32 \(2,\), found float32 \(3,\)"):
        decoder.decode(saved(torch.ones(3)), None, 0)
    with pytest.raises(UsageError, match="pt takes both"):
        Pt(shape=(2,))


def test_a_loader_reads_tensors_only_when_asked(tmp_path: Path) -> None:
    """`stoker.pt` by name; by default the bytes as they are."""
    write_shards(tmp_path / "data", 8, shards=1, member=lambda i: {"pt": saved(torch.full((3,), i)), "cls": b"1"})
    dataset = stoker.open(tmp_path / "data")
    with stoker.Loader(dataset, 4, fields={"pt": stoker.pt}, shuffle="none", output="numpy") as loader:
        (first, _) = list(loader)
    assert first["pt"].dtype == np.int64 and first["pt"].tolist() == [[i] * 3 for i in range(4)]
    assert default_for("pt") == default_for("unknown")
    with stoker.Loader(dataset, 4, shuffle="none") as plain:
        assert all(isinstance(value, bytes) for value in next(iter(plain))["pt"])


def test_no_torch_is_needed() -> None:
    """Reading a tensor imports nothing of torch."""
    code = (
        "import sys; from stoker.decode import pt; raw = sys.stdin.buffer.read();"
        "print(pt.decode(raw, None, 0).tolist(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=saved(torch.tensor([3])), capture_output=True, check=True)
    assert done.stdout.strip() == b"[3] False"
