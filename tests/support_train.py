"""A training process that tests kill, resume and watch: `python support_train.py URL LOG STATE [--cache DIR]`.

It appends the sample numbers of every batch to LOG and saves the loader's state to STATE (whole, by rename) after each,
like a run that checkpoints every step.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import stoker


def main() -> None:
    """Train one epoch from where STATE says, in batches of 4."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("log", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("--cache")
    arguments = parser.parse_args()
    dataset = stoker.open(arguments.url, cache=arguments.cache)
    fields = {"jpg": stoker.image.Image(), "cls": int}
    loader = stoker.Loader(dataset, 4, fields=fields, seed=11, output="numpy")  # no torch: it starts sooner
    if arguments.state.exists():
        loader.load_state_dict(json.loads(arguments.state.read_text()))
    print("ready", flush=True)
    input()  # until the test has found the feeder
    with arguments.log.open("a") as log:
        for batch in loader:
            log.write(json.dumps(batch["__index__"].tolist()) + "\n")
            log.flush()
            temporary = arguments.state.with_suffix(".new")
            temporary.write_text(json.dumps(loader.state_dict()))
            temporary.replace(arguments.state)
    loader.close()


if __name__ == "__main__":
    main()
