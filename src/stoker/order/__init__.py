"""Which sample stands at which position of which epoch: pure functions of seed and epoch."""

from stoker.order.buckets import BucketedOrder
from stoker.order.mixture import MixedOrder, Stretch
from stoker.order.position import Position, plan_hash
from stoker.order.sequence import Mode, Order, build_order
from stoker.order.shuffle import sample_seed
from stoker.order.split import Split, Tail
from stoker.order.window import Window

__all__ = [
    "build_order", "BucketedOrder", "Order", "MixedOrder", "Stretch", "Mode", "Window", "Split", "Tail", "Position",
    "plan_hash", "sample_seed",
]  # fmt: skip
