"""What GPUs can do at most, by name: as their makers state it for dense bfloat16 products with float32 sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """tflops: dense bfloat16 (float16 where a GPU has no other), 10¹² per second. bandwidth: of its memory, 10¹² bytes."""

    tflops: float
    bandwidth: float


# The first whose words are all in the name of the device. Data sheets state products "with sparsity": half of that is dense.
# GeForce multiplies at half its rate where sums are float32.
PEAKS: dict[str, Peak] = {
    "B200": Peak(2250, 8.0),  # NVIDIA Blackwell Architecture Technical Brief, HGX B200
    "H200": Peak(989, 4.8),  # NVIDIA H200 Tensor Core GPU Datasheet
    "H100 PCIe": Peak(756, 2.0),  # NVIDIA H100 Tensor Core GPU Datasheet, as the next two
    "H100 NVL": Peak(835, 3.9),
    "H100": Peak(989, 3.35),  # SXM
    "A100 40GB": Peak(312, 1.555),  # NVIDIA A100 Tensor Core GPU Datasheet
    "A100": Peak(312, 2.0),  # 80 GB: 2.039 SXM, 1.935 PCIe
    "A10G": Peak(70, 0.6),  # NVIDIA A10G as in Amazon's G5 instances; its maker has no data sheet
    "A10": Peak(125, 0.6),  # NVIDIA A10 Tensor Core GPU Datasheet
    "A40": Peak(150, 0.7),  # NVIDIA A40 Datasheet
    "A6000": Peak(155, 0.77),  # NVIDIA Ampere GA102 GPU Architecture, appendix C
    "L40S": Peak(362, 0.86),  # NVIDIA L40S Datasheet
    "L40": Peak(181, 0.86),  # NVIDIA L40 Datasheet
    "L4": Peak(121, 0.3),  # NVIDIA L4 Tensor Core GPU Datasheet
    "V100": Peak(125, 0.9),  # NVIDIA V100 Tensor Core GPU Datasheet, float16
    "T4": Peak(65, 0.32),  # NVIDIA T4 Tensor Core GPU Datasheet, float16
    "RTX 5090": Peak(210, 1.8),  # NVIDIA RTX Blackwell GPU Architecture
    "RTX 4090": Peak(165, 1.0),  # NVIDIA Ada GPU Architecture, appendix A
    "RTX 3090": Peak(71, 0.94),  # NVIDIA Ampere GA102 GPU Architecture, table of the GeForce RTX 3090
    "MI300X": Peak(1307, 5.3),  # AMD Instinct MI300X Accelerator Data Sheet
    "MI250X": Peak(383, 3.2),  # AMD Instinct MI200 Series Accelerator Data Sheet; both of its dies
}


def peak_of(name: str) -> Peak | None:
    """Of the GPU that torch.cuda.get_device_name() calls so, such as "NVIDIA H100 80GB HBM3"; None if it is not known."""
    words = name.replace("-", " ").split()
    for known, peak in PEAKS.items():
        if all(word in words for word in known.split()):
            return peak
    return None
