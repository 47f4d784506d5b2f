"""A training run that tests kill: `support_checkpoint_train.py DATA LOCAL LOG [--remote R] [--every N] [--epochs N]`.

Two epochs in batches of 4 per rank; a checkpoint every N steps, with the loader's position in it. For each step it
appends a JSON line to LOG.rank: step, sample numbers, digest of the weights after it. Started again, it goes on. Alone
or under torchrun (gloo, data parallel).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stoker


def digest(network: torch.nn.Module) -> str:
    """Of all parameters, bit by bit."""
    raw = b"".join(one.detach().numpy().tobytes() for one in network.parameters())
    return hashlib.sha256(raw).hexdigest()[:16]


def batch_of(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features that tell the sample, and its label."""
    index = batch["__index__"].to(torch.float32)
    return torch.stack([torch.sin(index * k) for k in range(1, 9)], dim=1), batch["cls"].to(torch.float32)


def main() -> None:
    """Train to the end from where the newest checkpoint is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("local", type=Path)
    parser.add_argument("log")
    parser.add_argument("--remote")
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1 << 30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(1)
    network: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    if dist.is_initialized():
        network = torch.nn.parallel.DistributedDataParallel(network)
    loader = stoker.Loader(stoker.open(arguments.data), 4, fields={"cls": int}, seed=11)
    state = {"model": network, "optimizer": optimizer}
    with stoker.Checkpointer(arguments.local, arguments.remote, keep=2, timeout_s=20, on_full="wait") as ck:
        found = ck.resume(state, loader=loader)
        step = 0 if found is None else found.step
        print(f"ready at step {step}", flush=True)
        with Path(f"{arguments.log}.{rank}").open("a") as log:
            while loader.epoch < arguments.epochs and step < arguments.steps:
                for batch in loader:
                    features, label = batch_of(batch)
                    optimizer.zero_grad()
                    (network(features).squeeze(1) - label).square().mean().backward()
                    optimizer.step()
                    step += 1
                    line = {"step": step, "ids": batch["__index__"].tolist(), "weights": digest(network)}
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    if step % arguments.every == 0:
                        ck.save(step, state, loader=loader)
                    if step >= arguments.steps:
                        break
    loader.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
