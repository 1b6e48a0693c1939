"""Per-example gradients of a language model's loss by `torch.func.vmap`."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from tests.models.test_peft import language_model, tokens


def loss_of(model):
    def loss(parameters, ids, **more):
        return functional_call(model, parameters, (), {"input_ids": ids[None], "labels": ids[None], **more}).loss

    return loss


@pytest.mark.parametrize("name", ["2mamba", "gla", "gated-delta"])
def test_per_example_gradients_of_a_loss_are_those_of_each_example(name):
    model, ids = language_model(name).double(), tokens()
    parameters = {path: weight.detach() for path, weight in model.named_parameters()}
    ones = torch.ones(1, ids.shape[1], dtype=torch.long)
    found = vmap(grad(loss_of(model)), (None, 0))(parameters, ids)
    masked = vmap(lambda ids: grad(loss_of(model))(parameters, ids, attention_mask=ones))(ids)
    for index, sequence in enumerate(ids):
        model.zero_grad()
        model(input_ids=sequence[None], labels=sequence[None]).loss.backward()
        for path, weight in model.named_parameters():
            torch.testing.assert_close(found[path][index], weight.grad, rtol=1e-5, atol=1e-7)  # the loss is float32
            torch.testing.assert_close(masked[path][index], weight.grad, rtol=1e-5, atol=1e-7)


def test_right_padding_needs_no_mask_under_vmap():
    model, ids = language_model("2mamba").double(), tokens()
    parameters = {path: weight.detach() for path, weight in model.named_parameters()}
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0

    def loss(parameters, ids, labels, **more):
        given = {"input_ids": ids[None], "labels": labels[None], **more}
        return functional_call(model, parameters, (), given).loss

    labels = ids.masked_fill(mask == 0, -100)
    found = vmap(grad(loss), (None, 0, 0))(parameters, ids, labels)
    expected = grad(loss)(parameters, ids[1, :12], ids[1, :12])
    for path, gradient in expected.items():
        torch.testing.assert_close(found[path][1], gradient, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="attention_mask must be 1 everywhere where it differs"):
        vmap(lambda ids, mask: loss(parameters, ids, ids, attention_mask=mask[None]))(ids, mask)
