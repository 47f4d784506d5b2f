"""Train on photos/, resume from a checkpoint, and say where the time went."""

from __future__ import annotations

import torch

import stoker

dataset = stoker.open("photos")
fields = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
loader = stoker.Loader(dataset, 32, seed=1, fields=fields)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
    torch.nn.Linear(256, len(dataset.classes or ("all",))),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(2):
    for step, batch in enumerate(loader):
        images = batch["image"].permute(0, 3, 1, 2).float() / 255
        loss = torch.nn.functional.cross_entropy(model(images), batch["cls"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 5:  # weights, optimizer and the place in the data belong together
            torch.save({"model": model.state_dict(), "data": loader.state_dict()}, "checkpoint.pt")
print(f"epoch {loader.epoch}, loss {loss.item():.3f}")
print(loader.report())
loader.close()

with stoker.Loader(dataset, 32, seed=1, fields=fields) as resumed:
    resumed.load_state_dict(torch.load("checkpoint.pt", weights_only=True)["data"])
    print("resumed at", resumed.state_dict())
