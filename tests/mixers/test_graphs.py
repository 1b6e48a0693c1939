"""Every causal mixer as a graph: compiled, exported, and without storage."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

from maclaurin import build_mixer
from tests.mixers.test_laws import FORMS, MIXERS, VARIANTS, build, inputs

LENGTHS = (20, 33, 64, 100, 300)  # on both sides of every length at which a form or a chunk changes
PACKED = ("2mamba", "gla", "softmax", "s6")
QUICK = ("softmax", "sliding-window", "2mamba", "taylor", "gated-delta", "gla", "luna", "s6")

every_mixer = pytest.mark.parametrize("name", [*MIXERS, *VARIANTS])
some_and_slowly_all = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("2mamba", "gla", "delta") else pytest.mark.slow) for name in MIXERS]
)


class Outputs(torch.nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, x):
        return self.mixer(x, return_state=False)[0]


def assert_same_with_gradients(got, expected, module):
    leaves = list(module.parameters())
    pairs = [(got, expected)]
    found = [
        torch.autograd.grad(y.square().sum(), leaves, allow_unused=True, materialize_grads=True) for y in (got, expected)
    ]
    for a, b in [*pairs, *zip(*found, strict=True)]:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * (1 + b.abs().max().item()))


@some_and_slowly_all
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str)
def test_two_graphs_serve_five_lengths(name, dtype):
    """The one of the first length, and one of any other. In float64 nothing is native."""
    torch._dynamo.reset()
    module = Outputs(build(name, dtype))
    # gradients are compiled once: in float64 autograd finds those of the graph as it runs
    counter = CompileCounterWithBackend("aot_eager" if dtype == torch.float32 else "eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for length in LENGTHS:
        x = inputs(module.mixer, 2, length)
        assert_same_with_gradients(compiled(x), module(x), module)
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    ("name", "options"), [("2mamba", {}), ("2mamba", {"near_window": 4}), ("taylor", {}), ("softmax", {})], ids=str
)
def test_two_graphs_serve_five_lengths_with_their_states_and_a_bounded_number_all_steps(name, options):
    """Tokens do not wait to be folded where a compiler looks on. A KV cache, which grows, is one graph more."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    mixer = build_mixer(name, 16, 2, **options)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(mixer, fullgraph=True, backend=counter)
    with torch.no_grad():
        for length in LENGTHS:
            x = inputs(mixer, 2, length)
            (y, state), (expected, _) = compiled(x), mixer(x)
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        assert counter.frame_count == 2
        x = inputs(mixer, 2, 73)
        expected, _ = mixer(x)
        _, state = compiled(x[:, :33].contiguous())  # strides are part of what a graph is made for
        for t in range(33, 73):
            y, state = compiled(x[:, t : t + 1].contiguous(), state)
            torch.testing.assert_close(y, expected[:, t : t + 1], rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= (4 if name == "softmax" else 3)


@pytest.mark.parametrize("name", ["2mamba", "taylor"])
def test_states_go_from_a_graph_to_eager_mode_and_back(name):
    """One has tokens that wait where the other has folded them; both stand for the same tokens."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    mixer = build_mixer(name, 16, 2)
    compiled = torch.compile(mixer, fullgraph=True, backend="eager")
    x = inputs(mixer, 2, 30)
    with torch.no_grad():
        expected, _ = mixer(x)
        state, outputs = None, []
        for call, begin, end in [(mixer, 0, 9), (compiled, 9, 10), (mixer, 10, 14), (mixer, 14, 15), (compiled, 15, 30)]:
            y, state = call(x[:, begin:end], state)
            outputs.append(y)
        torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["2mamba", pytest.param("taylor", marks=pytest.mark.slow)])
def test_two_graphs_serve_states_before_and_after_they_fold(name):
    """Where fold_at says that tokens wait: what is returned has other tensors once it folds, one graph for each kind."""
    torch._dynamo.reset()
    mixer = build(name, torch.float32, fold_at=50, fold_every=32)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(mixer, fullgraph=True, backend=counter, dynamic=True)
    folded = set()
    for length in LENGTHS:
        x = inputs(mixer, 2, length)
        (y, state), (expected, _) = compiled(x), mixer(x)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        folded.add(state.attention.recurrent is not None)
    assert folded == {False, True}
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["2mamba", "delta"])
def test_a_step_is_one_graph_in_a_process_that_has_made_none(name, monkeypatch):
    """Nothing has called the mixer before: what is read once and kept was read when it was built."""
    monkeypatch.setattr("maclaurin.ops.fields._read", {})
    torch._dynamo.reset()
    mixer = build(name, torch.float32)
    compiled = torch.compile(mixer, fullgraph=True, backend="eager")
    x = inputs(mixer, 2, 5)
    with torch.no_grad():
        _, state = compiled(x[:, :4])
        y, _ = compiled(x[:, 4:], state)
        torch.testing.assert_close(y, mixer(x)[0][:, 4:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in PACKED else pytest.mark.slow) for name in MIXERS])
@pytest.mark.parametrize("kind", [torch.tensor, list])
def test_packed_documents_stay_apart_in_a_graph(name, kind):
    """A graph serves any bounds in a tensor; one that is made for a list has the sizes of its documents."""
    torch._dynamo.reset()
    mixer = build(name, torch.float32)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(mixer, fullgraph=True, backend=counter)
    x = inputs(mixer, 1, 40)
    cases = [[0, 7, 40], [0, 39, 40], [0, 0, 40]] if kind is torch.tensor else [[0, 7, 40], [0, 1, 25, 40]]
    for bounds in cases:
        (got, state), (expected, expected_state) = compiled(x, cu_seqlens=kind(bounds)), mixer(x, cu_seqlens=bounds)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert state.batch_size == expected_state.batch_size == len(bounds) - 1
        (more, _), (expected, _) = (mixer(x[:1].expand(len(bounds) - 1, -1, -1), one) for one in (state, expected_state))
        torch.testing.assert_close(more, expected, rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= (1 if kind is torch.tensor else 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2mamba", "gla", "gated-delta"])
def test_what_the_default_compiler_makes_is_the_same(name):
    torch._dynamo.reset()
    module = Outputs(build(name, torch.float32))
    compiled = torch.compile(module, fullgraph=True)
    for length in (20, 70):
        x = inputs(module.mixer, 2, length)
        assert_same_with_gradients(compiled(x), module(x), module)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in [*MIXERS, *VARIANTS]],
)
def test_an_export_serves_any_length(name):
    module = Outputs(build(name, torch.float32))
    exported = torch.export.export(module, (inputs(module.mixer, 2, 20),), dynamic_shapes={"x": {1: Dim("T", min=2)}})
    for length in (7, 301):
        x = inputs(module.mixer, 2, length)
        torch.testing.assert_close(exported.module()(x), module(x), rtol=1e-4, atol=1e-5)


@every_mixer
def test_shapes_need_no_storage(name):
    """Outputs and states on the meta device have the shapes and dtypes that they have with numbers, in every form."""
    mixer, x = build(name, torch.float32), inputs(build(name, torch.float32), 2, 12)
    with torch.device("meta"):
        without = build(name, torch.float32)
    for form in FORMS:
        for tokens in (x, x[:, :1]):
            y, state = mixer(tokens, form=form)
            got, got_state = without(tokens.to("meta"), form=form)
            for name_, tensor in {"y": y, **state.tensors()}.items():
                other = {"y": got, **got_state.tensors()}[name_]
                assert other.is_meta
                assert (other.shape, other.dtype) == (tensor.shape, tensor.dtype), name_


@pytest.mark.parametrize("name", ["gla", "2mamba", "gated-delta", "softmax"])
def test_padding_in_a_graph_has_no_influence(name):
    """A graph cannot look at a mask: padding is sorted to the back, and its tokens are zeros."""
    module = build(name, torch.float32)
    mask = torch.ones(3, 21, dtype=torch.long)
    mask[0, :9], mask[1, 12:] = 0, 0
    x = inputs(module, 3, 21)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch._dynamo.reset()
        y, state = module(x, attention_mask=mask)
        got, got_state = compiled(x, attention_mask=mask)
        later = inputs(module, 3, 2, seed=3)
        torch.testing.assert_close(got, y, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(module(later, got_state)[0], module(later, state)[0], rtol=1e-4, atol=1e-5)
