"""Decoders of pictures, for `Loader(fields={"image": stoker.image.RandomResizedCrop(224, flip=True)})`, and what mixes
a batch of them, for `Loader(batch_transform=stoker.image.Mixup(0.8, classes=1000))`."""

from stoker.decode.image import CenterCrop, Image, RandomResizedCrop, Resize
from stoker.decode.mix import CutMix, Mixup, OneOf

__all__ = ["Image", "Resize", "CenterCrop", "RandomResizedCrop", "Mixup", "CutMix", "OneOf"]
