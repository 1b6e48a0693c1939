"""torch.func on every causal mixer: gradients by parameters, per-example gradients, forward mode, Hessians."""

import pytest
import torch
from torch.func import functional_call, grad, jvp, vjp, vmap

from tests.mixers.test_laws import MIXERS, VARIANTS, build, inputs, relative

LENGTH = 11  # longer than the small states of the laws, so that tokens are folded
every_mixer = pytest.mark.parametrize("name", [*MIXERS, *VARIANTS])


def scalar(mixer, form):
    """A function of the parameters and one sequence (T, d_model)."""
    weights = torch.linspace(-1, 1, LENGTH * mixer.d_model, dtype=torch.float64).view(LENGTH, -1)

    def function(parameters, x):
        y, _ = functional_call(mixer, parameters, (x[None],), {"form": form})
        return (y[0] * weights).sum()

    return function


def drawn(name):
    """A mixer none of whose parameters is zero: gates that start closed would hide derivatives."""
    mixer = build(name)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.05 * torch.rand_like(parameter))
    return mixer, {key: parameter.detach() for key, parameter in mixer.named_parameters()}


def by_autograd(mixer, function, x):
    """The gradients by all parameters, and by x."""
    leaf, parameters = x.clone().requires_grad_(), dict(mixer.named_parameters())
    found = torch.autograd.grad(
        function(parameters, leaf), [*parameters.values(), leaf], materialize_grads=True, allow_unused=True
    )
    return joined(found[:-1]), found[-1]


def joined(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


@pytest.mark.parametrize("form", ["auto", "chunked"])
@every_mixer
def test_per_example_gradients_are_those_of_each_example(name, form):
    mixer, parameters = drawn(name)
    x, function = inputs(mixer, 3, LENGTH), scalar(mixer, form)
    expected = [by_autograd(mixer, function, example)[0] for example in x]
    assert relative(joined(grad(function)(parameters, x[0]).values()), expected[0]) < 1e-9
    examples = vmap(grad(function), (None, 0))(parameters, x)
    for index, gradient in enumerate(expected):
        assert relative(joined(part[index] for part in examples.values()), gradient) < 1e-9


@pytest.mark.parametrize("form", ["auto", "chunked"])
@every_mixer
def test_forward_mode_is_the_transpose_of_the_backward(name, form):
    mixer, parameters = drawn(name)
    (x,), function = inputs(mixer, 1, LENGTH), scalar(mixer, form)
    by_parameters, by_x = by_autograd(mixer, function, x)
    along, along_x = {key: torch.randn_like(value) for key, value in parameters.items()}, torch.randn_like(x)
    expected = by_parameters @ joined(along.values()) + (by_x * along_x).sum()
    _, found = jvp(function, (parameters, x), (along, along_x))
    assert found.item() == pytest.approx(expected.item(), rel=1e-8)


@every_mixer
def test_hessian_vector_products_forwards_and_backwards_agree(name):
    mixer, parameters = drawn(name)
    (x,), function = inputs(mixer, 1, LENGTH), scalar(mixer, "auto")
    along = torch.randn_like(x)
    gradient = grad(lambda x: function(parameters, x).square())
    _, forwards = jvp(gradient, (x,), (along,))
    _, pull = vjp(gradient, x)
    assert relative(forwards, pull(along)[0]) < 1e-9
    # PyTorch's own attention, which softmax uses in the form "auto", has no second derivatives
    leaf, function = x.clone().requires_grad_(), scalar(mixer, "chunked")
    (first,) = torch.autograd.grad(function(parameters, leaf).square(), leaf, create_graph=True)
    assert relative(torch.autograd.grad(first, leaf, along)[0], forwards) < 1e-9


def test_a_state_carries_its_tangent():
    """Also where kept tokens are so many that they would be appended in place."""
    mixer, _ = drawn("softmax")
    x = inputs(mixer, 64, 60)

    def last(x):
        _, state = mixer(x[:, :-1])
        return mixer(x[:, -1:], state)[0]

    _, found = jvp(last, (x,), (torch.ones_like(x),))
    _, expected = jvp(lambda x: mixer(x)[0][:, -1:], (x,), (torch.ones_like(x),))
    assert relative(found, expected) < 1e-9
