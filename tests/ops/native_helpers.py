"""What the tests of the native backend share: its instruction sets, odd strides, and one comparison with torch."""

import torch

from maclaurin.ops import native
from tests.ops.helpers import Batch, assert_close, gradients, projections

FORWARD, BACKWARD = 1e-5, 1e-4


def has_isa(name):
    try:
        with native.using_isa(name):
            return True
    except ValueError:
        return False


ISAS = [name for name in ("avx512", "avx2", "portable") if native.available() and has_isa(name)]


def strided(batch: Batch) -> Batch:
    """The same numbers, heads before time, and the last tensor as every second channel of a wider one."""
    batch = batch.map(lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), parameters=False)
    name = list(batch.tokens)[-1]
    batch.tokens[name] = batch.tokens[name].repeat_interleave(2, dim=-1)[..., ::2]
    return batch


def run(op, batch, options, state, backend, dtype):
    """Outputs, and the gradients by every input and every tensor of the state."""
    inputs = {name: x.detach().to(dtype).requires_grad_() for name, x in batch.all().items()}
    wanted = dict(inputs)
    if state is not None:
        state = state._map(lambda x: x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x)
        wanted |= {f"state.{name}": x for name, x in state.tensors().items() if x.is_floating_point()}
    found = op(inputs, {**options, "backend": backend}, state)
    return found, gradients(projections(list(found.values())), wanted)


def assert_same_as_torch(op, batch, options, state=None):
    """Outputs to 1e-5; gradients to 1e-4, or to what torch loses in float32 where they cancel to almost nothing. One that is
    zero, such as that of normalised queries with one channel, has only rounding, which small queries enlarge.
    """
    got, got_gradients = run(op, batch, options, state, "native", torch.float32)
    _, torch_gradients = run(op, batch, options, state, "torch", torch.float32)
    exact, exact_gradients = run(op, batch, options, state, "torch", torch.float64)
    assert got.keys() == exact.keys()
    for name, x in exact.items():
        assert_close(got[name], x, FORWARD, name)
    whole = sum(gradient.norm().item() for gradient in exact_gradients.values())
    for name, gradient in exact_gradients.items():
        error, of_torch = ((x[name].double() - gradient).norm().item() for x in (got_gradients, torch_gradients))
        is_zero = gradient.norm().item() <= 1e-12 * whole  # float64 rounds at 1e-16
        allowed = max(BACKWARD * gradient.norm().item(), 4 * of_torch, (BACKWARD if is_zero else 1e-6) * whole)
        assert error <= allowed, f"gradient of {name} off by {error:.2e}, allowed {allowed:.2e}"
