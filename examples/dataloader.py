"""torch's DataLoader over photos/, in stoker's order: observed, stopped in mid-epoch, and resumed."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

import stoker
import stoker.torch


def main() -> None:
    """One epoch with a stop in between."""
    dataset = stoker.open("photos")
    fields = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
    samples = stoker.torch.MapDataset(dataset, fields)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    state = None
    for stop in (5, 1000):  # a run that ends after five batches, and the one that goes on
        batches = stoker.torch.BatchSampler(dataset, 32, seed=1)
        if state is not None:
            batches.load_state_dict(state)
        loader = DataLoader(
            samples, batch_sampler=batches, collate_fn=stoker.torch.collate, num_workers=2,
            multiprocessing_context="forkserver",
        )  # fmt: skip
        with stoker.observe(loader, name=f"until {stop}") as observed:
            for returned, batch in enumerate(observed, start=1):
                images = stoker.torch.normalize(batch["image"])
                model(images).mean().backward()
                if returned == stop:
                    state = batches.state_after(returned)
                    break
    print(f"epoch {batches.epoch}, {returned} batches after the resume, last shape {tuple(images.shape)}")


if __name__ == "__main__":
    main()
