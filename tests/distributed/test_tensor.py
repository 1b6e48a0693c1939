"""Heads split over processes: logits, losses and gradients are those of one process, and each kernel sees its own heads."""

import os

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from transformers.distributed import DistributedConfig

from maclaurin.distributed import clip_gradients
from maclaurin.distributed.sharded import shard_and_split
from maclaurin.distributed.tensor import SplitHeads, tensor_plan
from maclaurin.mixers import available_mixers, build_mixer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
SPLIT = [name for name in available_mixers() if build_mixer(name, 16, 4).whole_because is None]
# what the presets do not have: groups, one key for all, norms over all heads, decays per channel, windows, biases
VARIANTS = {
    "grouped": ("softmax", {"num_kv_heads": 2}),
    "one key-value head": ("gla", {"num_kv_heads": 1}),
    "one decay": ("retnet", {"num_kv_heads": 1}),
    "shared keys": ("2mamba", {"shared_keys": True, "gate": True, "skip": True}),
    "shared keys of groups": ("linear", {"shared_keys": 2}),
    "norm over heads": ("2mamba", {"norm": "output", "value_discretization": "dt", "dt_bias": True}),
    "decay per channel": ("mamba2s", {"decay": "channel", "qk_norm": True, "projection_bias": True}),
    "window beside": ("linear", {"near_window": 5, "near_norm": "joint"}),
    "groups of mamba2": ("mamba2", {"n_groups": 2}),
    "orders of their own": ("taylor", {"order_dim": 2, "norm": "output"}),
    "cumulative gate": ("gated-softmax", {"divisor": "cumulative-gate"}),
    "inline": ("inline", {"local_residual": False, "learn_scale": True}),
}
CASES = {name: (name, {}) for name in SPLIT} | VARIANTS


def model_of(mixer, options, **fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = MaclaurinForCausalLM(MaclaurinConfig(**sizes, mixer=mixer, mixer_options=options, **fields)).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # gates that start at zero would hide what is behind them
    return model


def batch():
    return torch.randint(12, (2, 9), generator=torch.Generator().manual_seed(1))


def results(model):
    ids = batch()
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    logits = model(input_ids=ids).logits
    return out.loss.detach(), logits.detach(), {name: one.grad for name, one in model.named_parameters()}


def difference(got, expected):
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-6))


def whole_gradients(model):
    """With gradients in the places of weights, so that they are put in order in the same way."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in model.state_dict().items()}


def test_which_mixers_can_be_split():
    assert set(available_mixers()) - set(SPLIT) == {"inline", "s6", "mamba", "ssd", "mamba2-single-head", "qlstm"}


def test_every_mixer_on_two_processes_has_the_gradients_of_one():
    """In one job for all mixers: starting processes takes longer than the work."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        worst = {}
        for case, (mixer, options) in CASES.items():
            model = model_of(mixer, options)
            loss, logits, gradients = results(model)
            whole = sum(parameter.numel() for parameter in model.parameters())
            weights = {name: one.clone() for name, one in model.state_dict().items()}
            parallelize_module(model, mesh, tensor_plan(model))
            same = all(torch.equal(_full(one), weights[name]) for name, one in model.state_dict().items())
            got_loss, got_logits, _ = results(model)
            found = whole_gradients(model)
            worst[case] = max(
                difference(got_loss, loss),
                difference(got_logits, logits),
                *(difference(found[name], gradient) for name, gradient in gradients.items()),
                0.0 if same else 1.0,
            )
            local = sum((_local(parameter)).numel() for parameter in model.parameters())
            assert local < 0.9 * whole, case  # the keys of mamba2 are those of all heads
        return worst

    for worst in on_ranks(2, work, group=True):
        assert {name: found for name, found in worst.items() if not found <= 1e-9} == {}


@pytest.mark.slow
def test_two_groups_that_share_heads_spread_the_parameters_of_every_mixer():
    """Each group has one of the two sequences; FSDP2 takes the mean of their gradients."""

    def work(rank):
        worst = {}
        for case, (mixer, options) in CASES.items():
            model = model_of(mixer, options)
            *_, expected = results(model)
            whole = sum(parameter.numel() for parameter in model.parameters())
            model.zero_grad()
            shard_and_split(model, 2, "cpu")
            assert sum(_local(parameter).numel() for parameter in model.parameters()) < 0.5 * whole, case
            ids = batch()[rank // 2][None]
            model(input_ids=ids, labels=ids).loss.backward()
            found = whole_gradients(model)
            worst[case] = max(difference(found[name], gradient) for name, gradient in expected.items())
        return worst

    for worst in on_ranks(4, work, group=True):
        assert {name: found for name, found in worst.items() if not found <= 1e-9} == {}


def test_gradients_of_split_and_whole_parameters_are_clipped_as_those_of_one_process():
    def clipped(model):
        results(model)
        return float(clip_gradients(model.parameters(), 0.1)), whole_gradients(model)

    norm, gradients = clipped(model_of(["2mamba", "s6"], None))
    assert norm > 0.2
    one = model_of(["2mamba", "s6"], None)
    results(one)
    assert float(torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1)) == pytest.approx(norm, rel=1e-12)

    def work(rank):
        model = model_of(["2mamba", "s6"], None)
        parallelize_module(model, init_device_mesh("cpu", (2,)), tensor_plan(model))
        return clipped(model)

    for got, found in on_ranks(2, work, group=True):
        assert got == pytest.approx(norm, rel=1e-9)
        assert max(difference(found[name], gradient) for name, gradient in gradients.items()) <= 1e-9


def _full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_splits_and_saves_by_its_own_names(tmp_path, tied):
    model = model_of(["2mamba", "mlstm"], None, tie_word_embeddings=tied).float()
    model.save_pretrained(tmp_path / "one")
    loss, logits, gradients = results(model)

    def work(rank):
        split = MaclaurinForCausalLM.from_pretrained(tmp_path / "one", distributed_config=DistributedConfig(tp_plan="auto"))
        assert [layer.mixer.num_heads for layer in split.model.layers] == [2, 2]
        _, state = split.model.layers[1].mixer(torch.zeros(1, 3, 16))
        assert state.attention.recurrent.shape[1] == 2
        got_loss, got_logits, _ = results(split.train())
        generated = split.eval().generate(batch(), max_new_tokens=4, do_sample=False)
        split.save_pretrained(tmp_path / "two")
        found = whole_gradients(split)
        worst = max(difference(found[name], gradient) for name, gradient in gradients.items())
        return difference(got_loss, loss), difference(got_logits, logits), worst, generated

    for *differences, generated in on_ranks(2, work, group=True):
        assert max(differences) <= 1e-4
        assert torch.equal(generated, model.eval().generate(batch(), max_new_tokens=4, do_sample=False))
    again = MaclaurinForCausalLM.from_pretrained(tmp_path / "two").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in model.state_dict().items())


def test_a_plan_that_splits_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"would split no mixer of this model \(s6: it has no heads"):
        tensor_plan(model_of("s6", None))
    assert not any(name.endswith("0.mixer") for name in tensor_plan(model_of(["s6", "linear"], None)))
    model_of("s6", None).save_pretrained(tmp_path)

    def refused(rank):
        with pytest.raises(ValueError, match="would split no mixer of this model"):
            MaclaurinForCausalLM.from_pretrained(tmp_path, distributed_config=DistributedConfig(tp_size=2))
        grouped, odd, mesh = (
            build_mixer("softmax", 24, 6, num_kv_heads=3),
            build_mixer("linear", 24, 3),
            init_device_mesh("cpu", (2,)),
        )
        with pytest.raises(ValueError, match="num_kv_heads must be 1 or a multiple of the 2 processes"):
            parallelize_module(grouped, mesh, SplitHeads())
        with pytest.raises(ValueError, match="3 heads of the mixer 'linear' cannot be shared equally by 2 processes"):
            parallelize_module(odd, mesh, SplitHeads())

    on_ranks(2, refused, group=True)


def test_what_transformers_spreads_before_it_can_be_split_is_refused(tmp_path):
    model_of("2mamba", None).save_pretrained(tmp_path)

    def refused(rank):
        with pytest.raises(ValueError, match="must be split before its parameters are spread over processes"):
            MaclaurinForCausalLM.from_pretrained(tmp_path, distributed_config=DistributedConfig(tp_size=2, fsdp_size=2))

    on_ranks(4, refused, group=True)


def test_layers_have_the_types_of_transformers():
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 5}
    names = ["2mamba", "softmax", "sliding-window", "gated-softmax", "mamba"]
    types = ["linear_attention", "full_attention", "sliding_attention", "full_attention", "linear_attention"]
    assert MaclaurinConfig(**sizes, mixer=names).layer_types == types
    windowed = MaclaurinConfig(**sizes, mixer="softmax", mixer_options={"softmax": {"window": 4}})
    assert windowed.layer_types == ["sliding_attention"] * 5
