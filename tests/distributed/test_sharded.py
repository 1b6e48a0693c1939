"""Parameters spread over processes: the same losses, and checkpoints that load on any number of them."""

import os

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed import DistributedConfig

from maclaurin.distributed import sequence_parallel, slice_of
from maclaurin.distributed.sharded import load_sharded, save_sharded, shard
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from tests.ranks import on_ranks
from tests.shell import typed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")


def new_model(*mixers):
    torch.manual_seed(0)
    mixers = mixers or ("2mamba", "gated-delta")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": len(mixers), "num_attention_heads": 2}
    return MaclaurinForCausalLM(MaclaurinConfig(vocab_size=11, **sizes, mixer=list(mixers))).train()


def losses_of(model, count):
    """Of so many steps, all processes with the same batches."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(count):
        ids = torch.randint(11, (2, 12), generator=generator)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("processes", [2, 4])
def test_sharded_models_train_as_whole_ones_and_their_checkpoints_load_anywhere(tmp_path, processes):
    one = new_model()
    expected = losses_of(one, 50)

    def trained(rank):
        model = shard(new_model())
        found = losses_of(model, 50)
        save_sharded(model, tmp_path / "sharded")
        local = sum(parameter.to_local().numel() for parameter in model.parameters())
        return found, local

    for found, local in on_ranks(processes, trained, group=True):
        assert found == pytest.approx(expected, abs=1e-5)
        assert local < 1.2 / processes * sum(parameter.numel() for parameter in one.parameters())

    assert typed("consolidate", tmp_path / "sharded", tmp_path / "whole").returncode == 0
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    assert weights.keys() >= {name for name, _ in one.named_parameters()}
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=0, atol=1e-4)

    def elsewhere(rank):
        torch.manual_seed(7)
        model = shard(MaclaurinForCausalLM(new_model().config))
        load_sharded(model, tmp_path / "sharded")
        return {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}

    for others in {1, 2, 4} - {processes}:
        for loaded in on_ranks(others, elsewhere, group=True):
            assert all(torch.equal(loaded[name], weights[name]) for name in loaded)


def test_transformers_shards_by_its_own_names(tmp_path):
    one = new_model()
    one.save_pretrained(tmp_path)
    expected = losses_of(one, 5)

    def work(rank):
        model = MaclaurinForCausalLM.from_pretrained(tmp_path, distributed_config=DistributedConfig(fsdp_size=2)).train()
        return losses_of(model, 5), sum(parameter.to_local().numel() for parameter in model.parameters())

    for found, local in on_ranks(2, work, group=True):
        assert found == pytest.approx(expected, abs=1e-6)
        assert local < 0.6 * sum(parameter.numel() for parameter in one.parameters())


@pytest.mark.parametrize("exchange", ["chain", "gather"])
def test_two_groups_of_two_share_parameters_and_each_a_pack_of_documents(exchange):
    """In checkpointed layers, one of them softmax. FSDP2 means gradients over all four processes, where those of the two
    slices of a sequence are to be summed."""
    ids, bounds = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, 12])
    one = new_model("2mamba", "softmax", "gated-delta")
    for sequence in ids.split(1):
        (one(input_ids=sequence, labels=sequence, cu_seqlens=bounds).loss / 2).backward()

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
        model = shard(new_model("2mamba", "softmax", "gated-delta"))
        model.gradient_checkpointing_enable()
        sequence, start = ids[rank // 2][None], 7 * (rank % 2)
        batch = {"input_ids": sequence, "labels": sequence, "cu_seqlens": bounds}
        own = slice_of(batch, start, 7 + 5 * (rank % 2))
        with sequence_parallel(mesh["sequence"].get_group(), exchange):
            (2 * model(**own, num_items_in_batch=10).loss).backward()
        return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}

    for found in on_ranks(4, work, group=True):
        for name, parameter in one.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="Linear names no layers that could be sharded"):
        shard(torch.nn.Linear(2, 2))


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    refused = typed("consolidate", tmp_path, tmp_path)
    assert (refused.returncode, refused.stderr.splitlines()) == (2, [refused.stderr.strip()])
    assert "is no checkpoint of torch.distributed.checkpoint: it lacks .metadata" in refused.stderr
