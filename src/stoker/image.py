"""Decoders of pictures, for `Loader(fields={"image": stoker.image.RandomResizedCrop(224, flip=True)})`."""

from stoker.decode.image import CenterCrop, Image, RandomResizedCrop, Resize

__all__ = ["Image", "Resize", "CenterCrop", "RandomResizedCrop"]
