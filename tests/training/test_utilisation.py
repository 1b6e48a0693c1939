"""The share of the device that training uses, and what is asked of the Trainer where there is a GPU."""

import json

import pytest
import torch

from maclaurin.machine import allocator
from maclaurin.models import MaclaurinConfig
from maclaurin.ops.gpu.peaks import peak_of
from maclaurin.training import Recipe, run, train, utilisation


def test_flops_are_those_of_the_products():
    """Six per weight of a product, and the attention of softmax."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = MaclaurinConfig(**sizes, num_hidden_layers=2, mixer="softmax")
    found = [utilisation.flops_per_token(config, length) for length in (64, 128)]
    weights = 2 * (4 * 16 * 16 + 3 * 16 * 24) + 16 * 50
    pairs = 2 * 3 * 2 * 2 * 16  # layers, passes, products, FLOPs of a multiply-add, channels
    assert found[1] - found[0] == pytest.approx(64 * pairs)
    assert found[0] == pytest.approx(6 * weights + 64 * pairs)


def test_the_log_has_the_share_of_the_peak(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("a green bottle hanging on the wall\n" * 200)
    fields = {"length": 32, "batch_size": 2, "steps": 4, "eval_rows": 2, "num_hidden_layers": 1, "track": "none"}
    train(Recipe(output=str(tmp_path / "run"), corpus=str(tmp_path / "text.txt"), peak_tflops=0.01, **fields))
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    entries = [entry for entry in log if "loss" in entry]
    config = MaclaurinConfig.from_pretrained(tmp_path / "run")
    for entry in entries:
        share = entry["tokens_per_second"] * utilisation.flops_per_token(config, 32) / 0.01e12
        assert entry["mfu"] == pytest.approx(share, rel=1e-2)
    assert entries


@pytest.mark.parametrize(
    ("name", "tflops"), [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-40GB", 312)]
)
def test_peaks_by_the_name_of_the_gpu(name, tflops):
    found = peak_of(name)
    assert found is not None and found.tflops == tflops
    assert peak_of("Voodoo 2") is None
    assert utilisation.peak_flops(2.0) == 2e12


def test_on_a_gpu_batches_are_pinned_and_made_ahead(monkeypatch):
    """Where there is none, nothing changes; options of the Trainer go before."""
    assert run._for_device({}) == {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = run._for_device({})
    assert "dataloader_prefetch_factor" not in run._for_device({"dataloader_num_workers": 0})
    assert found["dataloader_pin_memory"] and found["dataloader_num_workers"] and found["dataloader_prefetch_factor"]
    assert found["accelerator_config"] == {"non_blocking": True}
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert run._bf16("auto") and not run._bf16("fp32")


def test_segments_on_a_gpu_grow_unless_the_environment_says_otherwise(monkeypatch):
    for given, expected in ((None, "expandable_segments:True"), ("backend:native", "backend:native")):
        monkeypatch.delenv(allocator.CUDA_VARIABLE, raising=False)
        if given:
            monkeypatch.setenv(allocator.CUDA_VARIABLE, given)
        allocator.grow_segments()
        assert allocator.os.environ[allocator.CUDA_VARIABLE] == expected
        monkeypatch.delenv(allocator.CUDA_VARIABLE)


def test_batches_made_by_other_processes_are_the_same(tmp_path, monkeypatch):
    """As they are on a GPU: the same losses, to the last bit."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("".join(f"{i} green bottles hanging on the wall\n" for i in range(200)))
    fields = {"length": 32, "batch_size": 2, "steps": 4, "eval_rows": 2, "num_hidden_layers": 1, "track": "none"}
    found = []
    for name, workers in (("alone", 0), ("workers", 2)):
        ahead = {"dataloader_prefetch_factor": 4, "dataloader_persistent_workers": True} if workers else {}
        options = {"dataloader_num_workers": workers, **ahead}
        result = train(Recipe(output=str(tmp_path / name), corpus=str(tmp_path / "text.txt"), trainer=options, **fields))
        found.append(result.held_out_loss)
    assert found[0] == found[1]
