"""What linear time and bounded memory mean, counted instead of measured."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from maclaurin import ops
from tests.ops.helpers import BY_NAME, Sizes, assert_close

K, V, CHUNK = 8, 8, 32
FEATURES = K * (K + 1) // 2
OPS = ["power-2-decay", "power-2-sums", "power-2", "taylor-2-weighted", "delta-decay", "delta-2-decay"]


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of elements that any operation returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                # by storage: an expanded view of a small tensor is small
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


class Traffic(TorchDispatchMode):
    """Counts the elements that all operations together wrote: what a count of matrix products does not see."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.numel += sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result


def train(name, T, chunk=CHUNK, **options):
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=T, G=1, R=1, K=K, V=V)).to(torch.float32).leaves()
    y, _ = op.function(**batch.all(), **op.options, form="chunked", chunk_size=chunk, **options)
    y.square().sum().backward()


@pytest.mark.parametrize("options", [{}, {"return_state": False}], ids=["state", "no-state"])
@pytest.mark.parametrize("name", OPS)
def test_nothing_grows_faster_than_the_inputs(name, options):
    """No tensor of T x T and none of T x features, forward or backward: the largest is as large as the values."""
    for T in (1024, 2048):
        with LargestTensor() as largest:
            train(name, T, **options)
        values_and_ones = T * (V + 1)
        assert largest.numel <= max(values_and_ones, 2 * CHUNK * FEATURES), f"T = {T}"


@pytest.mark.parametrize("name", OPS)
def test_what_is_kept_for_the_backward_is_the_inputs(name):
    """Saved for the backward: inputs, outputs and one memory, and nothing a chunk."""
    op = BY_NAME[name]
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    sums = []
    for T in (1024, 2048):
        batch = op.draw(Sizes(B=1, T=T, G=1, R=1, K=K, V=V)).to(torch.float32).leaves()
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = op.function(**batch.all(), **op.options, form="chunked", chunk_size=CHUNK)
        sums.append(sum(saved.values()))
        del kept
    per_token = 4 * (3 * (K + V + 1) + 3 * (V + 1))
    assert sums[1] - sums[0] <= 1024 * per_token


@pytest.mark.parametrize("name", OPS)
def test_the_cost_of_a_token_does_not_depend_on_the_length(name):
    counts = []
    for T in (1024, 2048):
        with FlopCounterMode(display=False) as counter:
            train(name, T, return_state=False)
        counts.append(counter.get_total_flops())
    assert counts[1] / counts[0] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("name", [*OPS, "linear-decay", "inline"])
def test_what_is_written_for_a_token_does_not_depend_on_the_length(name):
    counts = []
    for T in (1024, 2048):
        with Traffic() as traffic:
            train(name, T, return_state=False)
        counts.append(traffic.numel)
    assert counts[1] / counts[0] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("name", ["linear-decay", "linear-channel", "inline"])
def test_linear_attention_costs_the_same_for_every_token(name):
    counts = []
    for T in (512, 1024):
        with FlopCounterMode(display=False) as counter:
            train(name, T)
        counts.append(counter.get_total_flops())
    assert counts[1] / counts[0] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("form", ["auto", "chunked"])
@pytest.mark.parametrize("window", [24, 100])
def test_a_window_costs_the_same_for_every_token(form, window):
    """Backwards too: no gradient of a block is as large as the sequence."""

    def written(T):
        leaves = [torch.randn(1, T, 2, K, requires_grad=True) for _ in range(3)]
        with Traffic() as traffic:
            y, _ = ops.softmax_attention(*leaves, window=window, form=form, chunk_size=CHUNK, return_state=False)
            y.square().sum().backward()
        return traffic.numel

    short, middle, long = (written(T) for T in (1024, 2048, 4096))
    assert (long - middle) / (middle - short) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_an_mlstm_costs_the_same_for_every_token(backend):
    counts = []
    for T in (1024, 2048):
        leaves = [torch.randn(1, T, 2, *size, requires_grad=True) for size in ((K,), (K,), (V,), (), ())]
        with Traffic() as traffic:
            y, _ = ops.mlstm(*leaves, form="chunked", chunk_size=CHUNK, backend=backend, return_state=False)
            y.square().sum().backward()
        counts.append(traffic.numel)
    assert counts[1] / counts[0] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("name", ["softmax-decay", "softmax-relu", "taylor-5"])
def test_without_a_finite_state_there_is_still_no_square_matrix(name):
    op = BY_NAME[name]
    T = 1024
    batch = op.draw(Sizes(B=1, T=T, G=1, R=1, K=24, V=8)).to(torch.float32).leaves()
    with LargestTensor() as largest:
        y, _ = op.function(**batch.all(), **op.options, form="chunked", chunk_size=32)
        y.square().sum().backward()
    assert largest.numel <= 2 * 32 * T


def test_a_decoding_step_reads_the_memory_and_does_not_fold_it():
    """Between folds a step costs one product with the memory; the fold itself costs a few, every fold_every tokens."""
    op = BY_NAME["power-2-decay"]
    batch = op.draw(Sizes(B=1, T=100, G=1, R=1, K=K, V=V)).to(torch.float32)
    _, state = op(batch, fold=(20, 50))
    assert state.slots == 30 and state.recurrent is not None  # whoever looks first folds the prompt
    token = op.draw(Sizes(B=1, T=1, G=1, R=1, K=K, V=V)).to(torch.float32)
    with FlopCounterMode(display=False) as counter:
        op(token, fold=(20, 50), state=state, form="recurrent")
    assert counter.get_total_flops() <= 2 * (FEATURES * (V + 1) + 31 * (K + V + 1)) * 1.01


@pytest.mark.slow
def test_chunked_power_attention_compiles():
    op = BY_NAME["power-2-decay"]
    batch = op.draw(Sizes(B=1, T=32, G=1, R=2, K=4, V=4)).to(torch.float32).leaves()

    def loss(q, k, v, log_decay):
        y, _ = ops.power_attention(q, k, v, log_decay, form="chunked", chunk_size=8, return_state=False)
        return y.square().sum()

    expected = loss(**batch.all())
    grads = torch.autograd.grad(expected, list(batch.all().values()))
    compiled = torch.compile(loss, backend="aot_eager")(**batch.all())
    assert_close(compiled, expected, 1e-5)
    for actual, grad in zip(torch.autograd.grad(compiled, list(batch.all().values())), grads, strict=True):
        assert_close(actual, grad, 1e-4)
