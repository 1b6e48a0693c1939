"""The language model as a graph: compiled with its loss, in generation, and without storage."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.documents import NOT_IN_GRAPHS


def build(mixer, layers=1, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    return MaclaurinForCausalLM(MaclaurinConfig(**sizes, num_hidden_layers=layers, mixer=mixer, **options))


def tokens(batch, length):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("mixer", ["2mamba", pytest.param("gated-delta", marks=pytest.mark.slow)])
@pytest.mark.parametrize("padded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_graphs_of_the_loss_serve_five_lengths(mixer, padded, monkeypatch):
    monkeypatch.setattr("maclaurin.models.decoder.LOSS_CHUNK", 50)
    torch._dynamo.reset()
    model = build(mixer).train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for length in (20, 33, 64, 100, 300):
        ids = tokens(2, length)
        mask = torch.ones_like(ids)
        mask[0, : length // 2] = 0
        call = {"input_ids": ids, "labels": ids, "attention_mask": mask if padded else None, "logits_to_keep": 1}
        losses = [compiled(**call).loss, model(**call).loss]
        torch.testing.assert_close(*losses)
        for got, expected in zip(*(torch.autograd.grad(loss, list(model.parameters())) for loss in losses), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 2


def test_one_graph_of_the_loss_serves_any_bounds_of_packed_documents():
    torch._dynamo.reset()
    model = build("gla", layers=2).train()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    ids = tokens(1, 30)
    for bounds in ([0, 7, 19, 30], [0, 1, 29, 30], [0, 10, 10, 30]):
        packed = {"input_ids": ids, "labels": ids, "cu_seq_lens_q": torch.tensor(bounds, dtype=torch.int32)}
        losses = [compiled(**packed).loss, model(**packed).loss]
        torch.testing.assert_close(*losses)
        for got, expected in zip(*(torch.autograd.grad(loss, list(model.parameters())) for loss in losses), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("mixer", "most"), [("2mamba", 2), pytest.param("taylor", 2, marks=SLOW), pytest.param("softmax", 3, marks=SLOW)]
)
def test_generation_is_one_graph_for_the_prompt_and_one_for_a_step(mixer, most):
    """And one more where a KV cache grows."""
    torch._dynamo.reset()
    model = build(mixer).eval()
    ids = tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    counter = CompileCounterWithBackend("aot_eager")
    model.compile(backend=counter)
    for _ in range(2):
        assert torch.equal(model.generate(ids, **options), expected)
    assert counter.frame_count <= most


@pytest.mark.parametrize("asked", [{}, {"logits_to_keep": 0}], ids=str)
def test_a_compiled_training_step_has_logits(asked):
    """With gradients, for a loss of one's own."""
    torch._dynamo.reset()
    model = build("gla").train()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids = tokens(2, 8)
    got, expected = compiled(ids, labels=ids, **asked), model(ids, labels=ids)
    torch.testing.assert_close(got.loss, expected.loss)
    torch.testing.assert_close(got.logits, expected.logits)
    losses = [outputs.loss + outputs.logits.square().mean() for outputs in (got, expected)]
    for one, other in zip(*(torch.autograd.grad(loss, list(model.parameters())) for loss in losses), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_refuses_packed_documents_instead_of_joining_them():
    torch._dynamo.reset()
    model = build("gla").eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids = tokens(1, 8)
    positions = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids, position_ids=positions).logits, model(ids).logits)
        with pytest.raises(RuntimeError, match=NOT_IN_GRAPHS[:40]):
            compiled(ids, position_ids=positions % 4)


@pytest.mark.parametrize("mixer", ["2mamba", "gla", "delta", "softmax"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_language_model_needs_no_storage(mixer, padded):
    with torch.device("meta"):
        model = build(mixer, layers=2)
        ids = torch.zeros(2, 30, dtype=torch.long)
        outputs = model(ids, labels=ids, attention_mask=torch.ones_like(ids) if padded else None, use_cache=True)
        step = model(ids[:, :1], past_key_values=outputs.past_key_values)
    assert outputs.loss.shape == () and outputs.loss.is_meta
    assert outputs.logits.shape == (2, 30, 50) and outputs.logits.is_meta
    assert step.logits.shape == (2, 1, 50) and step.logits.is_meta
