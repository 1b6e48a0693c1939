"""What GPUs can do at most, by name: as their makers state it for dense bfloat16 products with float32 sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """tflops: dense bfloat16 (float16 where a GPU has no other), 10¹² per second. bandwidth: of its memory, 10¹² bytes."""

    tflops: float
    bandwidth: float


# the first whose words are all in the name of the device
PEAKS: dict[str, Peak] = {
    "B200": Peak(2250, 8.0),
    "H200": Peak(989, 4.8),
    "H100 PCIe": Peak(756, 2.0),
    "H100 NVL": Peak(835, 3.9),
    "H100": Peak(989, 3.35),
    "A100": Peak(312, 2.0),
    "A10G": Peak(70, 0.6),
    "A10": Peak(125, 0.6),
    "A40": Peak(150, 0.7),
    "A6000": Peak(155, 0.77),
    "L40S": Peak(362, 0.86),
    "L4": Peak(121, 0.3),
    "V100": Peak(125, 0.9),
    "T4": Peak(65, 0.32),
    "RTX 5090": Peak(210, 1.8),
    "RTX 4090": Peak(165, 1.0),
    "RTX 3090": Peak(71, 0.94),
    "MI300X": Peak(1307, 5.3),
    "MI250X": Peak(383, 3.2),
}


def peak_of(name: str) -> Peak | None:
    """Of the GPU that torch.cuda.get_device_name() calls so, such as "NVIDIA H100 80GB HBM3"; None if it is not known."""
    words = name.replace("-", " ").split()
    for known, peak in PEAKS.items():
        if all(word in words for word in known.split()):
            return peak
    return None
