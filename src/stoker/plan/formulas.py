"""The design's two formulas, and what follows from them. Pure arithmetic.

    consumption = batch × sample bytes × 2 / step time
    supply ≥ 1.2 × consumption

What the 2 stands for: each byte passes through host memory twice, once on its way in (read, decoded, written into the
batch), once on its way out (copied to the GPU), and both happen in every step, because the next batch is made while
this one is handed over: the double buffer of a prefetching loader. So `consumption` is a traffic. A stage that carries
each byte only once (network, drive, PCIe) could feed a steady run with half of it; asked for all of it, it has the
other half in reserve, and a queue that ran empty (epoch seam, checkpoint, slow shard) fills as fast as it is used up.
Both lines are drawn here: below the rule but above 1.2 × the steady need a run is *tight*; below that it *starves*.

All stages are compared in samples a second of one node, since a sample is the only unit that they have in common: it
has other bytes in the store than on the way to the GPU, and a core counts it by time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from stoker.errors import UsageError
from stoker.plan import typical

PASSES = 2.0
HEADROOM = 1.2

Source = Literal["store", "lustre", "nvme", "memory"]
SOURCES: tuple[Source, ...] = ("store", "lustre", "nvme", "memory")
Verdict = Literal["fed", "tight", "starved"]


@dataclass(frozen=True, slots=True)
class Demand:
    """What training takes."""

    batch: int
    """Samples a step of one GPU."""
    sample_bytes: float
    """Bytes of a sample as it is stored."""
    step_s: float
    """Seconds of a training step, data apart."""
    gpus: int = 1
    """GPUs of a node."""
    nodes: int = 1
    tensor_bytes: float | None = None
    """Bytes of a sample as it goes to the GPU (224 × 224 × 3 = 150,528 for a uint8 image); default: as stored."""

    def __post_init__(self) -> None:
        _positive(self, "batch", "sample_bytes", "step_s", "gpus", "nodes", "tensor_bytes")

    @property
    def samples_per_s(self) -> float:
        """What the GPUs of a node take in a steady run."""
        return self.gpus * self.batch / self.step_s

    @property
    def consumption_bytes_per_s(self) -> float:
        """The design's consumption of a node: batch × sample bytes × 2 / step time, over its GPUs."""
        return self.samples_per_s * self.sample_bytes * PASSES


@dataclass(frozen=True, slots=True)
class Supply:
    """What the machines give. None: a typical rate."""

    source: Source = "store"
    """Where the samples come from: an object store, Lustre, the node's own drives, or its memory."""
    cores: int = 1
    """CPU cores of a node that may decode."""
    store_bytes_per_s: float | None = None
    """Of the object store, over all nodes."""
    lustre_bytes_per_s: float | None = None
    """Over all nodes."""
    network_bytes_per_s: float | None = None
    """Of one node."""
    nvme_bytes_per_s: float | None = None
    """Of one drive."""
    nvme_drives: int = 1
    """Of one node."""
    decode_s: float | None = None
    """CPU seconds to decode and augment a sample; 0 where there is nothing to decode."""
    pcie_bytes_per_s: float | None = None
    """To one GPU."""
    cache_bytes: float = 0
    """Of one node's cache on NVMe, in front of store or Lustre."""
    dataset_bytes: float | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UsageError(f"the source is one of {', '.join(SOURCES)}, found {self.source!r}")
        rates = (f"{name}_bytes_per_s" for name in ("store", "lustre", "network", "nvme", "pcie"))
        _positive(self, "cores", "nvme_drives", "dataset_bytes", *rates)
        for name in ("cache_bytes", "decode_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name} must be a number from 0 on, found {value!r}")
        if self.cache_bytes and self.dataset_bytes is None:
            raise UsageError("what a cache saves depends on the dataset: give dataset_bytes (--dataset) too")

    @property
    def cached_share(self) -> float:
        """Share of the samples that come from the cache once it is warm: cache / dataset, as nothing is evicted."""
        if self.source not in ("store", "lustre") or not self.dataset_bytes:
            return 0.0
        return min(1.0, self.cache_bytes / self.dataset_bytes)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage can carry."""

    name: str
    samples_per_s: float
    """Samples a second of one node, if every sample passed through it; infinite where it has nothing to do."""
    share: float
    """Share of the samples that do pass through it."""
    given: bool
    """Whether its rate was given; else it is a typical one."""
    rate: str
    """The rate in words, before it was divided."""

    @property
    def supply_samples_per_s(self) -> float:
        """Samples a second of one node that it lets a run have."""
        return self.samples_per_s / self.share if self.share else math.inf


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to change, and to what: with all of a plan's changes made, the plan is fed."""

    stage: str
    argument: str
    """Of `Supply`."""
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows."""

    demand: Demand
    stages: tuple[Stage, ...]
    """In the order of the road."""
    changes: tuple[Change, ...]

    @property
    def needed_samples_per_s(self) -> float:
        """What every stage of a node must carry by the rule: 1.2 × 2 × what the GPUs take."""
        return HEADROOM * PASSES * self.demand.samples_per_s

    @property
    def needed_bytes_per_s(self) -> float:
        """The same in stored bytes: 1.2 × consumption."""
        return HEADROOM * self.demand.consumption_bytes_per_s

    @property
    def narrowest(self) -> Stage:
        """The stage that lets the least through."""
        return min(self.stages, key=lambda stage: stage.supply_samples_per_s)

    @property
    def supply_samples_per_s(self) -> float:
        """What the narrowest stage lets through."""
        return self.narrowest.supply_samples_per_s

    @property
    def verdict(self) -> Verdict:
        """`fed`: the rule holds. `tight`: a steady run is fed, a queue that ran empty fills slowly. `starved`: else."""
        if self.supply_samples_per_s >= self.needed_samples_per_s:
            return "fed"
        return "tight" if self.supply_samples_per_s >= HEADROOM * self.demand.samples_per_s else "starved"

    @property
    def idle_share(self) -> float:
        """Share of a steady run in which the GPUs have nothing to do."""
        return max(0.0, 1 - self.supply_samples_per_s / self.demand.samples_per_s)

    def to_dict(self) -> dict[str, object]:
        """For JSON; infinite rates are null."""
        stages = [
            {
                **asdict(stage),
                "samples_per_s": _finite(stage.samples_per_s),
                "supply_samples_per_s": _finite(stage.supply_samples_per_s),
                "margin": _finite(stage.supply_samples_per_s / self.needed_samples_per_s),
            }
            for stage in self.stages
        ]
        return {
            "verdict": self.verdict,
            "narrowest": self.narrowest.name,
            "demand": asdict(self.demand),
            "consumption_bytes_per_s": self.demand.consumption_bytes_per_s,
            "needed_bytes_per_s": self.needed_bytes_per_s,
            "steady_samples_per_s": self.demand.samples_per_s,
            "needed_samples_per_s": self.needed_samples_per_s,
            "supply_samples_per_s": _finite(self.supply_samples_per_s),
            "idle_share": self.idle_share,
            "stages": stages,
            "changes": [asdict(change) for change in self.changes],
        }


def plan(demand: Demand, supply: Supply) -> Plan:
    """Whether *supply* feeds *demand* by the design's rule, which stage is the narrowest, and what would do.

    UsageError is raised where the two are made, for numbers that make no sense.
    """
    stages = _stages(demand, supply)
    need = HEADROOM * PASSES * demand.samples_per_s
    changes = tuple(_change(stage, demand, supply, need) for stage in stages if stage.supply_samples_per_s < need)
    return Plan(demand, stages, changes)


def _stages(demand: Demand, supply: Supply) -> tuple[Stage, ...]:
    size, cached = demand.sample_bytes, supply.cached_share
    found = []
    if supply.source in ("store", "lustre"):
        shared, usual = (
            (supply.store_bytes_per_s, typical.STORE_BYTES_PER_S)
            if supply.source == "store"
            else (supply.lustre_bytes_per_s, typical.LUSTRE_BYTES_PER_S)
        )
        found.append(_carrier(supply.source, shared, usual, 1 / demand.nodes, size, 1 - cached))
        found.append(_carrier("network", supply.network_bytes_per_s, typical.NETWORK_BYTES_PER_S, 1, size, 1 - cached))
    if supply.source == "nvme" or cached:
        share = 1.0 if supply.source == "nvme" else cached
        rate = supply.nvme_bytes_per_s
        found.append(_carrier("nvme", rate, typical.NVME_BYTES_PER_S, supply.nvme_drives, size, share))
    decode_s = supply.decode_s if supply.decode_s is not None else size * typical.DECODE_S_PER_BYTE
    if decode_s:
        words = f"{supply.cores} × {1 / decode_s:,.0f} samples/s"
        found.append(Stage("decode", supply.cores / decode_s, 1.0, supply.decode_s is not None, words))
    tensor = demand.tensor_bytes or size
    found.append(_carrier("pcie", supply.pcie_bytes_per_s, typical.PCIE_BYTES_PER_S, demand.gpus, tensor, 1.0))
    return tuple(found)


def _carrier(name: str, given: float | None, usual: float, times: float, sample_bytes: float, share: float) -> Stage:
    """A stage that is measured in bytes; *times* is how many of it a node has."""
    rate = given if given is not None else usual
    words = f"{rate / 1e9:.3g} GB/s"
    if times > 1:
        words = f"{times:.0f} × {words}"
    elif times < 1:
        words = f"{words} / {1 / times:.0f} nodes"
    return Stage(name, rate * times / sample_bytes, share, given is not None, words)


def _change(stage: Stage, demand: Demand, supply: Supply, need: float) -> Change:
    """What makes this stage carry *need* samples/s."""
    name, size = stage.name, demand.sample_bytes
    if name == "decode":
        cores = math.ceil(need * supply.cores / stage.samples_per_s)
        faster = f"samples that decode {need / stage.samples_per_s:.1f} × as fast"
        text = f"{cores} cores for decoding (has {supply.cores}), or {faster}"
        return Change(name, "cores", cores, text)
    if name == "nvme":
        drives = math.ceil(need * stage.share * supply.nvme_drives / stage.samples_per_s)
        return Change(name, "nvme_drives", drives, f"{drives} NVMe drives a node, striped (has {supply.nvme_drives})")
    if name == "pcie":
        rate = need * (demand.tensor_bytes or size) / demand.gpus
        text = f"{rate / 1e9:.3g} GB/s to each GPU: page-locked memory, bytes instead of floats"
        return Change(name, "pcie_bytes_per_s", rate, text)
    rate = need * stage.share * size * (1 if name == "network" else demand.nodes)
    where = "of the network to each node" if name == "network" else f"from {name}, over all nodes"
    hit = 1 - stage.samples_per_s / need
    cache = f"a cache that holds {hit:.0%} of the dataset"
    if supply.dataset_bytes is not None:
        cache += f", {hit * supply.dataset_bytes / 1e9:,.0f} GB a node"
    return Change(name, f"{name}_bytes_per_s", rate, f"{rate / 1e9:.3g} GB/s {where}, or {cache}")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _positive(values: object, *names: str) -> None:
    found: Mapping[str, object] = {name: getattr(values, name) for name in names}
    for name, value in found.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf
        ):
            raise UsageError(f"{name} must be a number above 0, found {value!r}")
