"""First order by the kernels of fla-core, which a shim makes run in the interpreter: arguments and states are mapped."""

import builtins
import sys

import pytest
import torch

from maclaurin.ops import backends, delta_rule, linear_attention
from maclaurin.ops.gpu import fla_core
from maclaurin.ops.states import DeltaState, LinearState
from tests.ops.helpers import assert_close

pytest.importorskip("fla")
pytestmark = pytest.mark.slow  # its import alone takes longer than the other tests
GRADIENTS = 2e-5
TOLERANCE = 1e-5  # of kernels that sum log decays of a block in float32


class _Counter(int):
    def to(self, *_):
        return self


def _counters(*bounds):
    return map(_Counter, builtins.range(*(int(bound) for bound in bounds)))


def _first_configuration(self, *arguments, **options):
    """Unmeasured: autotuning asks for a driver."""
    self.nargs = dict(zip(self.arg_names, arguments, strict=False))
    config = (self.prune_configs(options) or self.configs)[0]
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **options, **config.all_kwargs()})
    result = self.fn.run(*arguments, **options, **config.all_kwargs())
    self.nargs = None
    return result


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """fla-core without a GPU: kernels are not tuned, and counters of loops are numbers that can be cast."""
    import fla.ops.gated_delta_rule
    import fla.ops.gla
    import fla.ops.simple_gla  # noqa: F401
    from triton.runtime.autotuner import Autotuner

    monkeypatch.setattr(Autotuner, "run", _first_configuration)
    for name, module in list(sys.modules.items()):
        if name.startswith("fla.ops"):
            monkeypatch.setattr(module, "range", _counters, raising=False)
    monkeypatch.setattr(fla_core, "runs_on", lambda x: x.dtype == torch.float32)


def inputs(channels=False, decay=True):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 40, heads, 16, generator=generator) for heads in (2, 1, 1))
    a = -0.1 * torch.rand(1, 40, 1, *((16,) if channels else ()), generator=generator) if decay else None
    if a is not None:
        a[:, 7] = -torch.inf
    return q.abs(), torch.nn.functional.normalize(k.abs(), dim=-1), v, a


def compare(op, tensors, **options):
    """Two pieces with a state between them, by fla-core and by torch in float64."""
    found = []
    for dtype in (torch.float32, torch.float64):
        state, outputs = None, []
        with torch.no_grad(), backends.watching() as choices:
            for piece in (slice(0, 25), slice(25, 40)):
                y, state = op(*(None if x is None else x[:, piece].to(dtype) for x in tensors), state=state, **options)
                outputs.append(y)
        assert all((choice.backend == "fla") == (dtype == torch.float32) for choice in choices), choices
        found.append((torch.cat(outputs, 1), state.recurrent))
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, TOLERANCE)


def compare_gradients(op, tensors, **options):
    """Of one piece that begins with a state, by all inputs and by that state: from outputs and from the state behind it."""
    generator = torch.Generator().manual_seed(3)
    width = 16 + bool(options.get("normalize"))
    start = torch.rand(1, 1, 16, width, generator=generator)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [None if x is None else x.to(dtype).requires_grad_() for x in tensors]
        before = start.to(dtype).requires_grad_()
        y, state = op(*leaves, state=(DeltaState if op is delta_rule else LinearState)(before), **options)
        loss = sum((x * torch.sin(torch.arange(x.numel(), dtype=dtype)).view_as(x)).sum() for x in (y, state.recurrent))
        given = [x for x in (*leaves, before) if x is not None]
        found.append(torch.autograd.grad(loss, given))
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, GRADIENTS)


@pytest.mark.parametrize("options", [{}, {"channels": True}, {"decay": False}], ids=str)
def test_gradients_of_linear_attention(options):
    q, k, v, a = inputs(**options)
    a = None if a is None else a.clamp(min=-1)  # a decay of -inf has no gradient
    compare_gradients(linear_attention, (q, k, v, a), normalize=not options)


@pytest.mark.parametrize("decay", [True, False])
def test_gradients_of_the_delta_rule(decay):
    q, k, v, a = inputs(decay=decay)
    a = None if a is None else a.clamp(min=-1)
    compare_gradients(delta_rule, (q, k, v, torch.rand(1, 40, 1, generator=torch.Generator().manual_seed(1)), a))


@pytest.mark.parametrize("normalize", [True, False])
def test_a_decay_per_head(normalize):
    compare(linear_attention, inputs(), normalize=normalize)


@pytest.mark.parametrize("options", [{"channels": True}, {"decay": False}], ids=str)
def test_a_decay_per_channel_or_none(options):
    compare(linear_attention, inputs(**options), normalize=False)


@pytest.mark.parametrize("decay", [True, False])
def test_the_delta_rule(decay):
    q, k, v, a = inputs(decay=decay)
    compare(delta_rule, (q, k, v, torch.rand(1, 40, 1, generator=torch.Generator().manual_seed(1)), a))
