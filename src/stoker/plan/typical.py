"""Typical rates of the stages, for what nobody has measured yet: the lower end where a range is known.

They are starting points. A measured rate (`stoker tune`, a benchmark of the store, `fio`) is always better, and every
report marks which of the two it used.
"""

from __future__ import annotations

STORE_BYTES_PER_S = 5e9
"""Object storage, over all nodes: 5 to 20 GB/s, bounded by the network (the system's design document, chapter 1)."""
LUSTRE_BYTES_PER_S = 50e9
"""Lustre, over all nodes: 50 to 200 GB/s, by the number of OSTs (the same table)."""
NETWORK_BYTES_PER_S = 6.8e9
"""What one node draws from a store: 54.6 Gb/s were reached on a 100 Gb/s link (AWS CRT, 10,000 objects of 1 MiB)."""
NVME_BYTES_PER_S = 7e9
"""One local drive: 7 GB/s and more (the design document)."""
DECODE_S_PER_BYTE = 1.2e-3 / 110e3
"""CPU seconds a byte of JPEG: stoker's feeder takes 1.2 ms for a photo of 110 KB, decoded and resized to 224 (README,
"Measured"); torchvision in a DataLoader takes 1.2 to 1.6 times that."""
PCIE_BYTES_PER_S = 25e9
"""One GPU's link from page-locked memory: PCIe 4.0 x16, 31.5 GB/s on paper; half of it from pageable memory."""
