"""Pictures of a batch mixed with each other, and their labels alike: `batch_transform`s of a Loader.

Every row is mixed with the one before it, the first with the last: a batch is shuffled, so that is a random partner
(torchvision's transforms do the same). One draw a batch, from `batch["__seed__"]`, decides how much of each is taken,
so the result is the same for any number of threads, and after a resume. Shares are multiples of 1/256: bytes are mixed
in whole numbers, right in the slot, and labels get exactly the share that the pixels got.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from stoker.decode.augment import Box, Draws
from stoker.errors import UsageError

PARTS = 256
"""Shares are multiples of its inverse."""
ALPHA_MIN, ALPHA_MAX = 1e-6, 1e6
"""Below, the draws' logarithms are infinite; above, a share is always 1/2."""

Columns = dict[str, Any]
"""A batch: field → array with a row a sample."""


class BatchTransform(Protocol):
    """What `Loader(batch_transform=)` takes."""

    def __call__(self, batch: Columns, /) -> Mapping[str, Any] | None: ...


class _Mixing:
    """What both have in common: which fields, which seed, what becomes of labels."""

    def __init__(self, alpha: float, classes: int | None, image: str, label: str) -> None:
        """See the classes below. UsageError for an *alpha* that is no such number, or no *classes*."""
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not ALPHA_MIN <= alpha <= ALPHA_MAX:
            raise UsageError(
                f"alpha of {type(self).__name__} must be from {ALPHA_MIN:g} to {ALPHA_MAX:g}, found {alpha!r:.40}",
                "to mix nothing, leave it out",
            )
        if classes is not None and (type(classes) is not int or classes < 1):
            raise UsageError(f"classes is the number of labels, at least 1, found {classes!r}")
        self.alpha = float(alpha)
        self.classes = classes
        self.image = image
        self.label = label

    def __call__(self, batch: Columns) -> Columns:
        """Mix *batch* in place; the fields that are new or have another shape."""
        images = batch.get(self.image)
        if not isinstance(images, np.ndarray) or images.ndim != 4 or images.dtype.kind not in "uf":
            found = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else type(images).__name__
            raise UsageError(
                f"{type(self).__name__} mixes pictures of one shape, [batch, height, width, channels], "
                f"found {found} as {self.image!r}",
                "give them one: stoker.image.RandomResizedCrop(224)",
            )
        if images.dtype.kind == "u" and images.dtype != np.uint8:
            raise UsageError(f"{type(self).__name__} mixes bytes or floats, found {images.dtype} as {self.image!r}")
        labels = batch.get(self.label)
        if not isinstance(labels, np.ndarray):
            raise UsageError(f"{type(self).__name__} mixes labels too, but the batch has no numbers as {self.label!r}")
        draws = Draws(seed_of(batch))
        return self._labels(labels, self._pixels(images, draws))

    def _pixels(self, images: np.ndarray, draws: Draws) -> float:
        """Mix the pixels in place; the share of its own that each row keeps."""
        raise NotImplementedError

    def _labels(self, labels: np.ndarray, kept: float) -> Columns:
        lam = np.full(len(labels), kept, np.float32)
        if labels.ndim == 2 and labels.dtype.kind == "f":
            mixed = labels.copy()
            _blend(mixed, kept)
            return {self.label: mixed, "lam": lam}
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise UsageError(
                f"labels are whole numbers [batch] or shares [batch, classes], found {labels.dtype} of shape "
                f"{list(labels.shape)} as {self.label!r}"
            )
        other = np.roll(labels, 1)
        if self.classes is None:
            return {f"{self.label}_other": other, "lam": lam}
        if int(labels.min()) < 0 or int(labels.max()) >= self.classes:
            raise UsageError(
                f"labels lie between {labels.min()} and {labels.max()}, but {type(self).__name__} was told "
                f"classes={self.classes}"
            )
        hot = np.zeros((len(labels), self.classes), np.float32)
        rows = np.arange(len(labels))
        hot[rows, labels] = kept
        hot[rows, other] += np.float32(1 - kept)
        return {self.label: hot, "lam": lam}


class Mixup(_Mixing):
    """Pictures and labels blended in pairs (Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization")."""

    def __init__(
        self, alpha: float = 1.0, *, classes: int | None = None, image: str = "image", label: str = "cls"
    ) -> None:
        """Each row becomes λ × itself + (1 - λ) × the row before it, with λ of Beta(*alpha*, *alpha*), one a batch.

        *image*: the field of the pictures, uint8 or float [batch, height, width, channels], mixed in place; bytes are
        rounded half up. *label*: with *classes* the whole numbers [batch] of this field become float32 [batch,
        classes], what `torch.nn.functional.cross_entropy` takes as a target and torchvision's transforms give. Without,
        they stay, and `<label>_other` [batch] has the partner's. Labels that are shares already, float [batch,
        classes], are mixed. `lam`: float32 [batch], λ. UsageError for pictures of differing shape, or no labels.
        """
        super().__init__(alpha, classes, image, label)

    def _pixels(self, images: np.ndarray, draws: Draws) -> float:
        kept = round(symmetric_beta(self.alpha, draws) * PARTS) / PARTS
        _blend(images, kept)
        return kept


class CutMix(_Mixing):
    """A box of each picture replaced by its partner's (Yun et al. 2019, "CutMix: Regularization Strategy …")."""

    def __init__(
        self, alpha: float = 1.0, *, classes: int | None = None, image: str = "image", label: str = "cls"
    ) -> None:
        """Each row gets a box of the row before it; λ of Beta(*alpha*, *alpha*) sets its area, one box a batch.

        The box has 1 - λ of the area and the picture's aspect; its centre lies anywhere, so it may be cut off, and
        `lam` is the share that was really kept. Fields as for `Mixup`.
        """
        super().__init__(alpha, classes, image, label)

    def _pixels(self, images: np.ndarray, draws: Draws) -> float:
        height, width = int(images.shape[1]), int(images.shape[2])
        box = cut_box(height, width, symmetric_beta(self.alpha, draws), draws)
        part = images[:, box.top : box.top + box.height, box.left : box.left + box.width]
        for row, before in _with_the_row_before(part):
            row[...] = before
        return 1 - box.height * box.width / (height * width)


class OneOf:
    """One of several batch transforms, drawn anew for each batch: `OneOf(Mixup(0.8, …), CutMix(1.0, …))`."""

    def __init__(self, *transforms: BatchTransform, weights: Sequence[float] | None = None) -> None:
        """*weights* (default: equal) are relative. Give all of them the same fields and `classes`."""
        if not transforms or not all(callable(one) for one in transforms):
            raise UsageError("OneOf takes batch transforms: OneOf(Mixup(0.8, classes=10), CutMix(1.0, classes=10))")
        given = [1.0] * len(transforms) if weights is None else [float(weight) for weight in weights]
        if len(given) != len(transforms) or min(given) < 0 or not 0 < sum(given) < math.inf:
            raise UsageError(f"weights are {len(transforms)} numbers, none negative, not all 0; found {weights!r}")
        self.transforms = transforms
        self.weights = given

    def __call__(self, batch: Columns) -> Mapping[str, Any] | None:
        """Apply one; which, and what it draws, depends on the batch's seed only."""
        draws = Draws(seed_of(batch))
        at = draws.uniform(0, sum(self.weights))
        chosen = max(number for number, weight in enumerate(self.weights) if weight > 0)
        for number, weight in enumerate(self.weights):
            if at < weight:
                chosen = number
                break
            at -= weight
        return self.transforms[chosen]({**batch, "__seed__": draws.next()})


def seed_of(batch: Columns) -> int:
    """The batch's seed. UsageError where there is none."""
    if "__seed__" not in batch:
        raise UsageError(
            "the batch has no __seed__ to draw from",
            "a Loader's batch_transform gets one; elsewhere give a number that depends on seed, epoch and batch",
        )
    return int(batch["__seed__"])


def symmetric_beta(alpha: float, draws: Draws) -> float:
    """A number of Beta(alpha, alpha), in [0, 1].

    Above 1/2 by one formula (Ulrich 1984: the projection of a point on a sphere); else by Jöhnk's rejection (1964), in
    logarithms, since powers of small numbers are 0. Both as in Devroye 1986, "Non-Uniform Random Variate Generation".
    """
    if alpha > 0.5:
        first, second = 1 - draws.uniform(0, 1), draws.uniform(0, 1)
        return 0.5 + 0.5 * math.cos(2 * math.pi * second) * math.sqrt(1 - first ** (1 / (alpha - 0.5)))
    while True:
        one, other = (math.log(1 - draws.uniform(0, 1)) / alpha for _ in range(2))
        most = max(one, other)
        total = most + math.log(math.exp(one - most) + math.exp(other - most))
        if total <= 0:
            return math.exp(one - total)


def cut_box(height: int, width: int, kept: float, draws: Draws) -> Box:
    """A box of 1 - *kept* of the area with the picture's aspect, centred anywhere and cut at the edges."""
    half = 0.5 * math.sqrt(1 - kept)
    column, row = draws.below(width), draws.below(height)
    across, down = int(half * width), int(half * height)
    left, top = max(0, column - across), max(0, row - down)
    return Box(top, left, min(height, row + down) - top, min(width, column + across) - left)


def _with_the_row_before(rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each row, to be overwritten, with what stood in the row before it, in memory that may be overwritten too."""
    before, own = rows[-1].copy(), np.empty_like(rows[-1])
    for row in rows:
        own[...] = row
        yield row, before
        before, own = own, before


def _blend(rows: np.ndarray, kept: float) -> None:
    """Each row becomes kept × itself + (1 - kept) × the row before, in its dtype; bytes are rounded half up.

    Row by row with the same scratch memory: that stays in the processor's cache, which is 7 times as fast as all rows
    at once. In whole numbers a byte's share is at most 255 × 256 + 128, so 16 bits hold it.
    """
    if rows.dtype != np.uint8:
        for row, before in _with_the_row_before(rows):
            row *= kept
            before *= 1 - kept
            row += before
        return
    share = np.uint16(round(kept * PARTS))
    mixed, partner = np.empty(rows.shape[1:], np.uint16), np.empty(rows.shape[1:], np.uint16)
    for row, before in _with_the_row_before(rows):
        mixed[...] = row
        mixed *= share
        partner[...] = before
        partner *= np.uint16(PARTS) - share
        mixed += partner
        mixed += np.uint16(PARTS // 2)
        mixed >>= np.uint16(8)
        row[...] = mixed
