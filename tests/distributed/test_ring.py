"""Softmax layers in PyTorch's own ring. It runs on GPUs; here it has PyTorch's attention of CPUs."""

import os
from types import SimpleNamespace

import pytest
import torch
from torch import distributed
from torch.distributed.tensor.experimental._context_parallel import _attention as context_parallel

from maclaurin.distributed import ring, sequence_parallel
from maclaurin.mixers import build_mixer
from tests.distributed.test_sequences import gradients, largest_difference, model_of, on_slices, whole
from tests.ranks import on_ranks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
OF_CPU = ring.Kernel(
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    (),
)


def batch_of(rows, tokens, **more):
    torch.manual_seed(1)
    ids = torch.randint(11, (rows, tokens))
    return {"input_ids": ids, "labels": ids, **more}


@pytest.fixture
def rounds(monkeypatch):
    """Calls of PyTorch's ring, which takes the attention of CPUs, and sums in float64 where inputs are."""
    called, forward = [], context_parallel._templated_ring_attention

    def noted(group, seq_dim, op, query, key, value, **options):
        called.append((tuple(query.shape), tuple(key.shape), options))
        assert context_parallel._cp_options.rotate_method == context_parallel._RotateMethod.ALL_TO_ALL
        return forward(group, seq_dim, op, query, key, value, **options)

    monkeypatch.setattr(context_parallel, "_templated_ring_attention", noted)
    monkeypatch.setattr(context_parallel._cp_options, "convert_to_f32", False)
    monkeypatch.setattr(ring, "FLASH", OF_CPU)
    monkeypatch.setattr(ring, "has_flash", lambda x, group: True)
    return called


@needs_fork
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_ring_has_the_gradients_of_whole_sequences(rounds, count):
    """Between layers whose states go along a chain or are gathered, with checkpointed layers, and with a packed document."""
    tokens = 8 * count
    borders = [8 * rank for rank in range(count + 1)]
    model = model_of("softmax", "2mamba", "softmax", "gla")
    batch, packed = batch_of(2, tokens), batch_of(1, tokens, cu_seqlens=torch.tensor([0, tokens]))
    expected = [whole(model, batch), whole(model, packed)]

    def work(rank):
        found = [
            largest_difference(on_slices(model, batch, borders, rank, exchange=exchange)[0], expected[0])
            for exchange in ("chain", "gather")
        ]
        found.append(largest_difference(on_slices(model, packed, borders, rank)[0], expected[1]))
        plain = list(rounds)
        found.append(largest_difference(on_slices(model, batch, borders, rank, checkpointing=True)[0], expected[0]))
        return found, plain, len(rounds)

    for found, plain, with_recomputed in on_ranks(count, work, group=True):
        assert max(found) <= 1e-9
        of = {"is_causal": True, "dropout_p": 0.0}
        assert plain == [((2, 2, 8, 8), (2, 2, 8, 8), of)] * 4 + [((1, 2, 8, 8), (1, 2, 8, 8), of)] * 2
        assert with_recomputed == 6 + 2 * 2


@needs_fork
def test_grouped_heads_share_keys_in_the_ring(rounds):
    torch.manual_seed(0)
    mixer = build_mixer("softmax", 32, 4, num_kv_heads=2).double()
    x = torch.randn(2, 8, 32, dtype=torch.float64)
    expected, _ = mixer(x)
    expected.square().sum().backward()
    wanted = gradients(mixer)

    def work(rank):
        with sequence_parallel():
            y, _ = mixer(x[:, 4 * rank : 4 * rank + 4])
            y.square().sum().backward()
        return float((y - expected[:, 4 * rank : 4 * rank + 4]).abs().max()), gradients(mixer), rounds[0][:2]

    ended = on_ranks(2, work, group=True)
    assert [shapes for _, _, shapes in ended] == [((2, 4, 4, 8), (2, 2, 4, 8))] * 2
    assert max(worst for worst, _, _ in ended) <= 1e-12
    summed = {name: ended[0][1][name] + ended[1][1][name] for name in wanted}
    assert largest_difference(summed, wanted) <= 1e-9


@needs_fork
@pytest.mark.parametrize(
    ("borders", "documents"),
    [([0, 9, 16], None), ([0, 7, 14], None), ([0, 8, 16], [0, 8, 16]), ([0, 8, 16], [0, 12, 16])],
    ids=["uneven", "odd", "a document begins with a slice", "a document begins in a slice"],
)
def test_what_the_ring_cannot_take_is_gathered(rounds, borders, documents):
    bounds = {} if documents is None else {"cu_seqlens": torch.tensor(documents)}
    model, batch = model_of("softmax", "gla"), batch_of(1, borders[-1], **bounds)
    expected = whole(model, batch)

    def work(rank):
        return largest_difference(on_slices(model, batch, borders, rank)[0], expected), len(rounds)

    for worst, called in on_ranks(2, work, group=True):
        assert worst <= 1e-9
        assert not called


def test_which_layers_flash_attention_computes():
    taken = {name: options for name, options in CASES if ring.is_flash(build_mixer(name.split()[0], 32, 4, **options))}
    assert set(taken) == {"softmax", "softmax grouped", "gated-softmax plain"}


PLAIN = {"divisor": "sum", "score_cap": None}
CASES = [
    ("softmax", {}),
    ("softmax grouped", {"num_kv_heads": 2}),
    ("softmax of 4 channels", {"head_dim": 4}),
    ("softmax of 264 channels", {"head_dim": 264}),
    ("softmax with other keys", {"key_dim": 16}),
    ("softmax of features", {"feature_map": "cosine"}),
    ("softmax with decay", {"decay": "softplus"}),
    ("sliding-window", {}),
    ("fox", {}),
    ("2mamba-e", {}),
    ("2mamba", {}),
    ("gla", {}),
    ("gated-softmax", {}),
    ("gated-softmax plain", PLAIN),
    ("gated-softmax with epsilon", PLAIN | {"divisor_epsilon": 1e-3}),
    ("gated-softmax detached", PLAIN | {"detach_divisor": True}),
]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"is_cuda": False}, False),
        ({"dtype": torch.float32}, False),
        ({"backend": "cuda:gloo,cpu:gloo"}, False),
        ({"available": False}, False),
        ({"capability": (7, 5)}, False),
    ],
    ids=str,
)
def test_where_flash_attention_runs(changed, expected, monkeypatch):
    place = {"is_cuda": True, "dtype": torch.bfloat16, "backend": "cpu:gloo,cuda:nccl", "available": True}
    place |= {"capability": (8, 0)} | changed
    monkeypatch.setattr(distributed, "get_backend_config", lambda group: place["backend"])
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: place["available"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: place["capability"])
    x = SimpleNamespace(is_cuda=place["is_cuda"], dtype=place["dtype"], device="cuda:0")
    assert ring.has_flash(x, None) is expected


@needs_fork
def test_flash_attention_of_gpus_is_called_as_its_signature_wants():
    """On tensors without numbers, for which PyTorch checks arguments and shapes; a ring of one process exchanges nothing."""

    def work(rank):
        options = vars(context_parallel._cp_options).copy()
        group = distributed.group.WORLD
        q = torch.empty(2, 4, 16, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
        k, v = (torch.empty(2, 2, 16, 8, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in range(2))
        y = ring._Ring.apply(group, q, k, v)
        y.backward(torch.empty_like(y))
        assert vars(context_parallel._cp_options) == options
        return [tuple(x.shape) for x in (y, q.grad, k.grad, v.grad)]

    assert on_ranks(1, work, group=True) == [[(2, 4, 16, 8), (2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8)]]


def test_in_a_zigzag_all_processes_have_equally_many_pairs():
    for size in range(1, 9):
        owned = [[piece for piece in range(2 * size) if ring.owner_of(piece, size) == rank] for rank in range(size)]
        assert owned == [[rank, 2 * size - 1 - rank] for rank in range(size)]
        assert {sum(pieces) for pieces in owned} == {2 * size - 1}
