"""TensorFlow is the judge: tf.data reads what stoker writes, stoker reads what tf.io writes, equal in value and type.

Only where `make oracle` has made .venv-oracle: TensorFlow takes 1.6 GB, so CI is without. The tfrecord library and
protobuf's own classes stand in for it there.
"""

from __future__ import annotations

import pickle
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from support_typed import ROOT, same, tfrecord

ORACLE = ROOT / ".venv-oracle/bin/python"
pytestmark = pytest.mark.skipif(
    not ORACLE.exists(), reason="TensorFlow is not here: `make oracle` installs and runs it"
)

COMPRESSIONS = ("", "gzip", "zlib")
READ = """
import pickle, sys
import tensorflow as tf
def listed(feature):
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []
out = {}
for path, compression in pickle.load(open(sys.argv[1], "rb")):
    records = []
    for record in tf.data.TFRecordDataset(path, compression_type=compression.upper()):
        message = tf.train.SequenceExample.FromString(record.numpy())
        lists = message.feature_lists.feature_list
        records.append((
            {name: listed(one) for name, one in message.context.feature.items()},
            {name: [listed(one) for one in steps.feature] for name, steps in lists.items()},
        ))
    out[path] = records
fixed = {"__key__": tf.io.FixedLenFeature([], tf.string), "n": tf.io.FixedLenFeature([], tf.int64),
         "x": tf.io.FixedLenFeature([3], tf.float32), "image": tf.io.FixedLenFeature([], tf.string),
         "ragged": tf.io.RaggedFeature(tf.int64)}
dataset = tf.data.TFRecordDataset(sys.argv[3], compression_type="GZIP").batch(4)
parsed = [tf.io.parse_example(batch, fixed) for batch in dataset]
pickle.dump((out, [{k: v.to_list() if k == "ragged" else v.numpy() for k, v in one.items()} for one in parsed]),
            open(sys.argv[2], "wb"))
"""
WRITE = """
import pickle, sys
import tensorflow as tf
def feature(kind, values):
    lists = {"byte": ("bytes_list", tf.train.BytesList), "int": ("int64_list", tf.train.Int64List),
             "float": ("float_list", tf.train.FloatList)}
    name, make = lists[kind]
    return tf.train.Feature(**{name: make(value=values)})
def features(named):
    return tf.train.Features(feature={name: feature(kind, values) for name, (kind, values) in named.items()})
for path, compression, samples in pickle.load(open(sys.argv[1], "rb")):
    with tf.io.TFRecordWriter(path, compression.upper()) as writer:
        for context, steps in samples:
            if steps is None:
                message = tf.train.Example(features=features(context))
            else:
                lists = {name: tf.train.FeatureList(feature=[feature(kind, one) for one in values])
                         for name, (kind, values) in steps.items()}
                message = tf.train.SequenceExample(
                    context=features(context), feature_lists=tf.train.FeatureLists(feature_list=lists))
            writer.write(message.SerializeToString())
"""
EDGES: dict[str, list[Any]] = {
    "byte": [b"", b"x", b"\0\xff" * 300],
    "int": [0, -1, 2**63 - 1, -(2**63), 127, 128],
    "float": [0.0, -1.5, float(np.float32(1e30)), float(np.float32(0.1))],
}


def judge(script: str, *arguments: object) -> None:
    """Run a script with TensorFlow."""
    command = [str(ORACLE), "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def drawn(rng: random.Random) -> dict[str, tuple[str, list[Any]]]:
    """Features: name → kind and values."""
    kinds = {f"feature {n} ü": rng.choice(list(EDGES)) for n in range(rng.randint(1, 5))}
    return {name: (kind, rng.choices(EDGES[kind], k=rng.choice((1, 2, 300)))) for name, kind in kinds.items()}


def as_value(kind: str, found: list[Any]) -> Any:
    """The value that stoker has for such a list."""
    if len(found) == 1:
        return found[0]
    return found if kind == "byte" else np.array(found, np.int64 if kind == "int" else np.float32)


def test_tensorflow_reads_what_stoker_writes(tmp_path: Path) -> None:
    """Examples and SequenceExamples of generated features, plain, gzip and zlib; and tf.io.parse_example in batches."""
    jobs, expected = [], {}
    for seed in range(9):
        rng, compression = random.Random(seed), COMPRESSIONS[seed % 3]
        path = str(tmp_path / f"{seed}.tfrecord")
        samples, wanted = {}, []
        for number in range(12):
            named = drawn(rng)
            steps = [[float(n)] * 2 for n in range(rng.randint(1, 4))] if seed % 2 else None
            ours = {name: as_value(*value) for name, value in named.items()}
            samples[f"key {number}"] = {**ours, **({"steps": np.array(steps, np.float32)} if steps else {})}
            context = {"__key__": [f"key {number}".encode()], **{name: values for name, (_, values) in named.items()}}
            wanted.append((context, {"steps": steps} if steps else {}))
        Path(path).write_bytes(tfrecord(samples, compression=compression))
        jobs.append((path, compression))
        expected[path] = wanted
    rows = {
        f"k{i}": {"n": i, "x": np.full(3, i, np.float32), "image": b"x" * i, "ragged": np.arange(i)}
        for i in range(2, 10)
    }
    (tmp_path / "rows").write_bytes(tfrecord(rows, compression="gzip"))
    (tmp_path / "jobs").write_bytes(pickle.dumps(jobs))
    judge(READ, tmp_path / "jobs", tmp_path / "read", tmp_path / "rows")
    found, batches = pickle.loads((tmp_path / "read").read_bytes())
    assert found == expected
    assert [key for one in batches for key in one["__key__"].tolist()] == [key.encode() for key in rows]
    assert [row for one in batches for row in one["x"].tolist()] == [[i] * 3 for i in range(2, 10)]
    assert [row for one in batches for row in one["ragged"]] == [list(range(i)) for i in range(2, 10)]
    assert [row for one in batches for row in one["image"].tolist()] == [b"x" * i for i in range(2, 10)]


def test_stoker_reads_what_tensorflow_writes(tmp_path: Path) -> None:
    """The same the other way round, and every batch of a loader has the values."""
    jobs = []
    for seed in range(9):
        rng = random.Random(100 + seed)
        samples = []
        for _ in range(12):
            steps = {"steps": ("int", [[1, 2, 3]] * rng.randint(1, 4)), "words": ("byte", [[b"a", b""], [b"c"]])}
            samples.append((drawn(rng), steps if seed % 2 else None))
        suffix = ".gz" if seed % 3 == 1 else ""
        (tmp_path / f"{seed}").mkdir()
        jobs.append((str(tmp_path / f"{seed}/x.tfrecord{suffix}"), COMPRESSIONS[seed % 3], samples))
    (tmp_path / "jobs").write_bytes(pickle.dumps(jobs))
    judge(WRITE, tmp_path / "jobs")
    for path, _, samples in jobs:
        dataset = stoker.open(Path(path).parent)
        assert len(dataset) == len(samples)
        for number, (context, steps) in enumerate(samples):
            read = {name: bytes(x) if isinstance(x, memoryview) else x for name, x in dataset[number].items()}
            assert all(same(read[name], as_value(*value)) for name, value in context.items()), (path, number)
            if steps is not None:
                assert same(read["steps"], np.array(steps["steps"][1]))
                assert [[bytes(one) for one in step] for step in read["words"]] == steps["words"][1]
