"""Layers over processes: a pipeline takes the steps of one process, by PyTorch's schedules and by transformers' own."""

import os

import pytest
import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from transformers.distributed import DistributedConfig

from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.stages import next_token_loss, stage_of, targets_of
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")


def new_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    mixers = ["2mamba", "softmax", "gated-delta"]
    return MaclaurinForCausalLM(MaclaurinConfig(vocab_size=11, **sizes, mixer=mixers)).train()


def batch():
    return torch.randint(11, (4, 12), generator=torch.Generator().manual_seed(1))


def test_stages_have_the_losses_and_gradients_of_the_model():
    model, ids = new_model(), batch()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    def work(rank):
        found = []
        for schedule in (ScheduleGPipe, Schedule1F1B):
            stage = stage_of(new_model(), rank, 2)
            pipeline = schedule(PipelineStage(stage, rank, 2, torch.device("cpu")), 2, loss_fn=next_token_loss)
            losses = []
            pipeline.step(*([ids] if rank == 0 else []), target=ids if rank else None, losses=losses)
            found.append((losses, {name: parameter.grad for name, parameter in stage.named_parameters()}))
        return found

    first, last = on_ranks(2, work, group=True)
    for (_, before), (losses, after) in zip(first, last, strict=True):
        assert sum(one.item() for one in losses) / 2 == pytest.approx(loss.item(), abs=1e-6)
        assert {**before, **after}.keys() == expected.keys()
        for name, gradient in {**before, **after}.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["padding on the right", "padding on the left", "documents", "documents and padding"])
def test_stages_keep_padding_and_documents_apart(kind):
    """In microbatches with different numbers of labels."""
    model, ids = new_model(), batch()
    slots = torch.arange(ids.shape[1], dtype=torch.long)
    of_batch = {}
    if "padding" in kind:
        lengths = torch.tensor([12, 5, 3, 9])[:, None]
        of_batch["attention_mask"] = (slots >= 12 - lengths if "left" in kind else slots < lengths).long()
    if "documents" in kind:
        of_batch["seq_idx"] = (slots >= torch.tensor([4, 12, 2, 7])[:, None]).long()
    loss = model(input_ids=ids, labels=ids, **of_batch).loss
    loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    def work(rank):
        stage, losses = stage_of(new_model(), rank, 2), []
        pipeline = Schedule1F1B(
            PipelineStage(stage, rank, 2, torch.device("cpu")), 2, loss_fn=next_token_loss, scale_grads=False
        )
        target = targets_of(ids, **of_batch)
        counted = {"num_items": int((target[:, 1:] != -100).sum())}
        for _ in range(2):  # the second time without asking for shapes
            losses.clear()
            stage.zero_grad()
            last = {"target": target, "losses": losses, "loss_kwargs": counted} if rank else {}
            pipeline.step(*([] if rank else [ids]), **last, **of_batch)
        return losses, {name: parameter.grad for name, parameter in stage.named_parameters()}

    (_, before), (losses, after) = on_ranks(2, work, group=True)
    assert sum(one.item() for one in losses) == pytest.approx(loss.item(), abs=1e-6)
    for name, gradient in {**before, **after}.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_the_pipeline_of_transformers_generates(tmp_path):
    model = new_model().eval()
    model.save_pretrained(tmp_path)
    ids = batch()

    def work(rank):
        part = MaclaurinForCausalLM.from_pretrained(tmp_path, distributed_config=DistributedConfig(pp_size=2)).eval()
        with torch.no_grad():
            logits = part(input_ids=ids).logits
        return logits, part.generate(ids, max_new_tokens=4, do_sample=False), sum(one.numel() for one in part.parameters())

    whole = sum(parameter.numel() for parameter in model.parameters())
    for logits, generated, own in on_ranks(2, work, group=True):
        torch.testing.assert_close(logits, model(input_ids=ids).logits.detach())
        assert torch.equal(generated, model.generate(ids, max_new_tokens=4, do_sample=False))
        assert own < 0.8 * whole


def test_stages_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="a model of 3 layers has as many stages at most, got stage 0 of 4"):
        stage_of(new_model(), 0, 4)
    with pytest.raises(ValueError, match="tie_word_embeddings must be False"):
        stage_of(MaclaurinForCausalLM(MaclaurinConfig(**new_model().config.to_dict() | {"tie_word_embeddings": True})), 0, 2)
