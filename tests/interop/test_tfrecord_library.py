"""The tfrecord library and protobuf's own classes read what stoker writes, and the other way round."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from support_typed import foreign, same, tfrecord

READ = """
import pickle, sys
from tfrecord import example_pb2
from tfrecord.reader import tfrecord_iterator
def plain(feature):
    kind = feature.WhichOneof("kind")
    return kind, list(getattr(feature, kind).value) if kind else []
out = {}
for path in sys.argv[3:]:
    records = []
    for record in tfrecord_iterator(path, compression_type="gzip" if path.endswith(".gz") else None):
        message = example_pb2.SequenceExample.FromString(bytes(record))
        lists = message.feature_lists.feature_list
        records.append((
            {name: plain(feature) for name, feature in message.context.feature.items()},
            {name: [plain(one) for one in steps.feature] for name, steps in lists.items()},
        ))
    out[path] = records
pickle.dump(out, open(sys.argv[2], "wb"))
"""
WRITE = """
import pickle, sys
from tfrecord import TFRecordWriter
for path, samples in pickle.load(open(sys.argv[2], "rb")):
    writer = TFRecordWriter(path)
    for context, lists in samples:
        writer.write(context, lists)
    writer.close()
"""
KINDS = {"byte": "bytes_list", "int": "int64_list", "float": "float_list"}


def values(rng: random.Random, kind: str, count: int) -> list[Any]:
    """Some values of a kind."""
    edges = {"byte": [b"", b"x", b"\0\xff" * 9], "int": [0, -1, 2**63 - 1, -(2**63)], "float": [0.0, -1.5, 1e30]}[kind]
    some = rng.choices(edges, k=count)
    return [float(np.float32(x)) for x in some] if kind == "float" else some


def features(rng: random.Random) -> dict[str, tuple[str, list[Any]]]:
    """A schema and values: name → kind and list."""
    kinds = {f"feature {n}": rng.choice(("byte", "int", "float")) for n in range(rng.randint(1, 5))}
    return {name: (kind, values(rng, kind, rng.choice((1, 2, 30)))) for name, kind in kinds.items()}


def as_value(kind: str, found: list[Any]) -> Any:
    """The value that stoker reads of such a list."""
    if len(found) == 1:
        return found[0]
    return found if kind == "byte" else np.array(found, np.int64 if kind == "int" else np.float32)


def test_the_library_reads_what_stoker_writes(tmp_path: Path) -> None:
    """Examples of generated features, plain and gzip, each with its key."""
    written = {}
    for seed in range(12):
        rng = random.Random(seed)
        samples = {f"key {n}": features(rng) for n in range(15)}
        path = tmp_path / f"{seed}.tfrecord{'.gz' if seed % 2 else ''}"
        ours = {key: {name: as_value(*value) for name, value in one.items()} for key, one in samples.items()}
        path.write_bytes(tfrecord(ours, compression="gzip" if seed % 2 else ""))
        written[str(path)] = samples
    foreign(READ, tmp_path / "read", *written)
    found = pickle.loads((tmp_path / "read").read_bytes())
    for path, samples in written.items():
        expected = [
            {"__key__": ("bytes_list", [key.encode()]), **{name: (KINDS[kind], x) for name, (kind, x) in one.items()}}
            for key, one in samples.items()
        ]
        assert [context for context, _ in found[path]] == expected


def test_the_library_reads_sequences(tmp_path: Path) -> None:
    """Fixed and ragged steps are the feature lists of a SequenceExample."""
    sample = {
        "label": 3,
        "fixed": np.arange(6).reshape(2, 3),
        "ragged": [[1.5], [2.5, 3.5]],
        "words": [[b"a", b"b"], [b"c"]],
    }
    (tmp_path / "x.tfrecord").write_bytes(tfrecord({"00000000": sample}, keys=False))
    foreign(READ, tmp_path / "read", tmp_path / "x.tfrecord")
    ((context, lists),) = pickle.loads((tmp_path / "read").read_bytes())[str(tmp_path / "x.tfrecord")]
    assert context == {"label": ("int64_list", [3])}
    assert lists == {
        "fixed": [("int64_list", [0, 1, 2]), ("int64_list", [3, 4, 5])],
        "ragged": [("float_list", [1.5]), ("float_list", [2.5, 3.5])],
        "words": [("bytes_list", [b"a", b"b"]), ("bytes_list", [b"c"])],
    }


def test_stoker_reads_what_the_library_writes(tmp_path: Path) -> None:
    """Examples and SequenceExamples: values and types are those that were written."""
    jobs = []
    for seed in range(12):
        rng = random.Random(50 + seed)
        samples = []
        for _ in range(15):
            context = {name: (found, kind) for name, (kind, found) in features(rng).items()}
            steps = {"steps": ([values(rng, "int", 3) for _ in range(4)], "int")} if seed % 2 else None
            samples.append((context, steps))
        (tmp_path / f"{seed}").mkdir()
        jobs.append((str(tmp_path / f"{seed}/x.tfrecord"), samples))
    (tmp_path / "jobs").write_bytes(pickle.dumps(jobs))
    foreign(WRITE, tmp_path / "jobs")
    for path, samples in jobs:
        dataset = stoker.open(Path(path).parent)
        assert len(dataset) == len(samples)
        for n, (context, steps) in enumerate(samples):
            read = {name: bytes(x) if isinstance(x, memoryview) else x for name, x in dataset[n].items()}
            assert all(same(read[name], as_value(kind, found)) for name, (found, kind) in context.items()), (path, n)
            assert steps is None or same(read["steps"], np.array(steps["steps"][0]))
