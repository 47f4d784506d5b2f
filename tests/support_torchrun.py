"""One rank of a gloo job: draws an epoch under torchrun; rank 0 prints the sample numbers of all ranks."""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

import stoker


def main() -> None:
    """An epoch, half before and half after a resume."""
    dist.init_process_group("gloo")
    dataset = stoker.open(sys.argv[1])
    loader = stoker.Loader(dataset, 4, fields={"cls": int}, seed=5)
    iterator = iter(loader)
    mine = [next(iterator)["__index__"].tolist() for _ in range(len(loader) // 2)]
    state = loader.state_dict()
    loader.close()
    with stoker.Loader(dataset, 4, fields={"cls": int}, seed=5) as resumed:
        resumed.load_state_dict(state)
        mine += [batch["__index__"].tolist() for batch in resumed]
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (mine, state))
    if dist.get_rank() == 0:
        print(json.dumps(gathered))
    dist.destroy_process_group()


main()
