"""Bad input gives one sentence that names the argument and what was expected."""

import dataclasses

import pytest
import torch

import maclaurin
from maclaurin.mixers.published import published_mixer


def selective(**options):
    return {"rotary": "selective", "rotary_options": options}


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("softmaxx", 32, 4), {}, r"unknown mixer 'softmaxx' \(did you mean 'softmax'\?\); available"),
        (("2mamba", 32, 4), {"conv_widht": 2}, r"no option 'conv_widht' \(did you mean 'conv_width'\?\); it takes"),
        (("2mamba", 32, 5), {}, "d_model must be a multiple of num_heads"),
        (("2mamba", 32, 4), {"num_kv_heads": 3}, "num_kv_heads must divide the 4 heads, got 3"),
        (
            ("2mamba", 32, 4),
            {"decay": "fast"},
            "decay must be one of 'none', 'softplus', .*'channel', got 'fast'",
        ),
        (("2mamba", 32, 4), {"norm": "max"}, "norm must be one of"),
        (("2mamba", 32, 4), {"order": 0}, "order must be a whole number >= 1"),
        (("2mamba", 32, 4), {"fold_every": 0}, "fold_every must be at least 1"),
        (("linear", 32, 4), {"fold_at": 5}, "fold_at needs an order above 1"),
        (("2mamba", 32, 4), {"decay": "channel", "order": 3}, "decay='channel' needs order 1 or 2, got 3"),
        (("fox", 32, 4), {"decay": "channel"}, "decay='channel' needs order 1 or 2, got None"),
        (("2mamba-delta", 32, 4), {"decay": "channel"}, "decay='channel' needs order 1, got 2"),
        (("mlstm", 32, 4), {"decay": "channel"}, "decay='channel' needs a mechanism of order 1 or 2"),
        (("2mamba", 32, 4), {"fold_at": 0}, "fold_at must be at least 1"),
        (("2mamba", 32, 4), {"window": 4}, "window needs softmax scores"),
        (("2mamba", 32, 4), {"learn_order_weights": True}, "learn_order_weights=True needs several orders"),
        (("2mamba", 32, 4), {"dt_bias": True}, "dt_bias=True needs a time step"),
        (("2mamba", 32, 4), {"init": "zeros"}, "init must be one of 'torch', 'llama'"),
        (("mamba2", 32, 4), {"causal": False}, "mixer 'mamba2' is causal only"),
        (("2mamba-e", 32, 4), {"causal": False}, "causal=False needs softmax without decay and window"),
        (("2mamba", 0, 4), {}, "d_model must be at least 1"),
        (("2mamba", 32, 0), {}, "num_heads must be at least 1"),
        (("softmax", 36, 4), {}, "rotary='rope' needs an even number of channels per head, got 9"),
        (("softmax", 36, 4), {"rotary": "selective"}, "rotary='selective' needs an even number of channels per head, got 9"),
        (("softmax", 32, 4), {"rotary": "selective", "causal": False}, "rotary='selective' sums angles over time"),
        (
            ("softmax", 32, 4),
            {"rotary_options": {"rank": 2}},
            "rotary_options belong to rotary='selective', got rotary='rope'",
        ),
        (("linear", 30, 4), {"head_dim": 8, "rotary": "selective"}, "a slice for each key-value head, got 30 for 4 heads"),
        (("linear", 32, 4), selective(rnk=2), "every key of rotary_options must be one of 'rank', .*, got 'rnk'"),
        (("linear", 32, 4), selective(rank=0), "rank must be at least 1, got 0"),
        (("linear", 32, 4), selective(increments="tanh"), "increments must be one of 'silu', 'linear', 'difference'"),
        (("linear", 32, 4), selective(gate=True), "gate must be one of 'none', 'standard', 'low-rank', 'gla', got True"),
        (("linear", 32, 4), selective(temperature="hot"), "temperature must be one of 'rope', 'rfa'"),
        (("linear", 32, 4), selective(theta=0.5), "theta must be at least 1 for temperature='rope', got 0.5"),
        (("linear", 32, 4), selective(temperature="rfa", theta=1.0), "theta must lie between 0 and 1 for temperature='rfa'"),
        (("linear", 32, 4), selective(temp_max=0), "temp_max must be positive, got 0"),
        (("linear", 8, 4), selective(temperature="rfa"), "it needs 4 key channels or more, got 2"),
        (("fox", 32, 4), {"causal": False}, "mixer 'fox' is causal only"),
        (("softmax", 32, 4), {"window": 0}, "window must be at least 1"),
        (("sliding-window", 32, 4), {"window": 0}, "window must be at least 1, got 0"),
        (("sliding-window", 32, 4), {"causal": False}, "causal=False needs softmax without decay and window"),
        (("mlstm", 32, 4), {"causal": False}, "mixer 'mlstm' is causal only"),
        (("mlstm", 32, 4), {"decay": "softplus"}, "decay must be 'none', because the forget gate of an mLSTM is its decay"),
        (("mlstm", 32, 4), {"input_gate": "tanh"}, "input_gate must be one of 'exp', 'sigmoid', got 'tanh'"),
        (("mlstm", 32, 4), {"norm": "sum"}, "norm must be one of 'layer', 'rms', got 'sum'"),
        (("mlstm", 32, 4), {"gate_cap": 0.0}, "gate_cap must be positive, got 0.0"),
        (("mlstm", 32, 4), {"norm_eps": 0.0}, "norm_eps must be positive, got 0.0"),
        (("mlstm", 24, 4), {"rotary": "rope"}, "rotary='rope' needs an even number of channels per head, got 3"),
        (("mlstm", 32, 4), {"num_kv_heads": 3}, "num_kv_heads must divide the 4 heads, got 3"),
        (("mlstm", 30, 4), {}, "d_model must be a multiple of num_heads"),
        (("mlstm", 32, 0), {}, "num_heads must be at least 1"),
        (("softmax", 32, 4), {"norm": "none"}, "leaves exp\\(score\\) unbounded"),
        (("gated-softmax", 32, 4), {"score_cap": None, "norm": "none"}, "give a score_cap or a norm"),
        (("taylor", 32, 4), {"order": 0}, "order must be at least 1"),
        (("softmax", 32, 4), {"lepe": (2, 2)}, "lepe needs causal=False: a filter over a grid sees later tokens"),
        (("gated-softmax", 32, 4), {"divisor": "mean"}, "divisor must be one of"),
        (("mamba2", 32, 4), {"n_groups": 3}, "n_groups must divide the 4 heads"),
        (("s6", 32, 4), {"num_kv_heads": 2}, r"no option 'num_kv_heads' \(its heads cannot be grouped\)"),
        (("qlstm", 32, 4), {"rotary": "selective"}, r"no option 'rotary' \(it does not have both queries and keys\)"),
        (("mamba2", 32, 4), {"conv_width": 0}, "conv_width must be at least 1"),
        (("delta", 32, 4), {"norm": "sum"}, "norm must be one of 'head', 'none', got 'sum'"),
        (("delta", 32, 4), {"num_kv_heads": 3}, "num_kv_heads must divide the 4 heads, got 3"),
        (("gated-delta", 36, 4), {"rotary": "rope"}, "rotary='rope' needs an even number of channels per head, got 9"),
        (("gated-delta", 32, 4), {"causal": False}, "mixer 'gated-delta' is causal only"),
        (("2mamba-delta", 32, 4), {"order": 0}, "order must be at least 1, got 0"),
        (("gla", 32, 4), {"decay": "softplus"}, "decay must be 'none', because gla has its own decay per key channel"),
        (("gla", 32, 4), {"decay_rank": 0}, "decay_rank must be at least 1"),
        (("gla", 32, 4), {"tau": 0}, "tau must be positive, got 0"),
        (("gla", 24, 4), {"tie_decay_pairs": True}, "tie_decay_pairs=True needs an even key_dim, got 3"),
        (
            ("2mamba", 32, 4),
            {"tie_decay_pairs": True},
            "'tie_decay_pairs' \\(it needs a decay per key channel and rotary positions",
        ),
        (("metala", 32, 4), {"tie_decay_pairs": True}, "'tie_decay_pairs' \\(it needs a decay per key channel"),
        (("inline", 32, 4), {"decay": "softplus"}, "decay must be 'none': inline weighs all tokens alike"),
        (("inline", 32, 4), {"feature_map": "elu"}, "feature_map must be one of 'identity', 'relu', 'leaky-relu', 'exp'"),
        (("inline", 32, 4), {"grid": (2, 3)}, "grid needs causal=False: an image has no order in time"),
        (("inline", 32, 4), {"grid": (2, 0), "causal": False}, "grid must be at least 1, got 0"),
        (("inline", 32, 4), {"grid": 4, "causal": False}, r"grid must be a pair \(rows, columns\), got 4"),
        (("inline", 32, 4), {"grid": (2, 3), "local_width": 4, "causal": False}, "local_width must be odd on a grid, got 4"),
        (("inline", 32, 4), {"class_tokens": 1, "causal": False}, "class_tokens needs a grid, got 1"),
        (("inline", 34, 4), {"head_dim": 8}, "local_residual=True needs a d_model that is a multiple of num_heads, got 34"),
        (("metala", 32, 4), {"aug": "both"}, "aug must be one of 'off', 'code', 'linear', 'gate', got 'both'"),
        (("metala", 32, 4), {"tau": -1.0}, "tau must be positive, got -1.0"),
        (("metala", 32, 5), {}, "d_model must be a multiple of num_heads unless head_dim is given"),
        (("mamba2", 32, 4), {"ssd": True, "expand": 2}, "ssd=True is the core alone: it takes no expand"),
        (("ssd", 32, 4), {"conv_width": 2}, "ssd=True is the core alone: it takes no expand"),
        (("ssd", 32, 5), {}, "must be a multiple of num_heads, got 32 and 5"),
        (("normalized", 32, 4), {"eta": "sum"}, "eta must be one of 'exp', 'softplus', 'sigmoid', 'softplus_offset', got"),
        (("normalized", 32, 4), {"feature_map": "relu"}, "feature_map must be one of 'identity', 'elu', got 'relu'"),
        (("normalized", 32, 4), {"num_kv_heads": 3}, "num_kv_heads must divide the 4 heads, got 3"),
        (("s6", 32, 4), {"num_kv_heads": 2}, "mixer 's6' has no option 'num_kv_heads'"),
        (("s6", 32, 4), {"d_state": 0}, "d_state must be at least 1"),
        (("s6", 32, 4), {"dt_rank": 0}, "dt_rank must be at least 1"),
        (("s6", 32, 4), {"causal": False}, "mixer 's6' is causal only"),
        (("qlstm", 32, 4), {"forget": "tanh"}, "forget must be one of 'sigmoid', 'reversed', got 'tanh'"),
        (("qlstm", 32, 4), {"conv_width": -1}, "conv_width must be at least 0"),
        (("rglru", 32, 5), {}, "width must be a multiple of num_heads, got 32 and 5"),
        (("rglru", 32, 4), {"width": 0}, "width must be at least 1"),
        (("luna", 32, 4), {"ch_rms": True}, "ch_rms=True needs causal=False"),
        (("luna", 32, 4), {"nonneg": False}, "norm must be 'output' or 'none', not 'sum'"),
        (("luna", 32, 4), {"nonneg": False, "norm": "none", "softplus": True}, "softplus=True takes the place"),
        (("luna", 32, 4), {"num_features": 30}, "num_features must be a multiple of num_channels, got 30 and 8"),
        (("luna", 32, 4), {"num_channels": 0}, "num_channels must be at least 1"),
        (("luna", 32, 4), {"bank": "common"}, "bank must be one of 'separate', 'shared', got 'common'"),
        (("luna", 32, 4), {"num_features": 2**17}, "num_features must be at most 65536, got 131072"),
        (("hedgehog", 32, 4), {"num_features": 7}, "num_features must be even, one for u and one for −u, got 7"),
        (("hedgehog", 32, 4), {"feature_map": "relu"}, "mixer 'hedgehog' has no option 'feature_map'"),
        (("t2r", 32, 4), {"num_features": 0}, "num_features must be at least 1"),
        (("performer", 32, 4), {"norm": "max"}, "norm must be one of 'sum', 'output', 'none', got 'max'"),
        (("performer", 32, 4), {"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_bad_options(arguments, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        maclaurin.build_mixer(*arguments, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m(x[0]), r"x must have 3 dimensions \(batch, time, 32\), got shape \(6, 32\)"),
        (lambda m, x: m(x[..., :8]), r"x must have shape"),
        (lambda m, x: m(x[:, :0]), r"x must have shape"),
        (lambda m, x: m(x, form="fast"), "form must be one of"),
        (lambda m, x: m(x, attention_mask=torch.ones(2, 5)), r"attention_mask must be a tensor of shape \(2, 6\)"),
        (lambda m, x: m(x, attention_mask=torch.full((2, 6), torch.nan)), "attention_mask must hold only 1"),
        (lambda m, x: m(x, cu_seqlens=[0, 6]), "the batch has 2"),
        (lambda m, x: m(x[:1], cu_seqlens=[0, 4, 3, 6]), "cu_seqlens must rise from 0 to the 6 tokens"),
        (lambda m, x: m(x, m.init_state(3)), "state must hold 2 sequences, got 3"),
        (
            lambda m, x: m(x[:1], cu_seqlens=[0, 6], attention_mask=torch.ones(1, 6)),
            "give at most one of attention_mask, cu_seqlens and lengths",
        ),
    ],
)
def test_bad_calls(call, message):
    mixer = maclaurin.build_mixer("2mamba", 32, 4)
    with pytest.raises(ValueError, match=message):
        call(mixer, torch.randn(2, 6, 32))


def test_a_state_of_another_kind_is_refused():
    x = torch.randn(1, 4, 32)
    _, state = maclaurin.build_mixer("softmax", 32, 4)(x)
    with pytest.raises(ValueError, match="state must come from a mixer of the kind '2mamba', got one of 'softmax'"):
        maclaurin.build_mixer("2mamba", 32, 4)(x, state)
    with pytest.raises(TypeError, match=r"state\.attention must be a PowerState, got TokenState"):
        maclaurin.build_mixer("2mamba", 32, 4)(x, dataclasses.replace(state, kind=None))
    with pytest.raises(ValueError, match="same heads and channels"):
        maclaurin.build_mixer("softmax", 32, 2)(x, state)
    with pytest.raises(TypeError, match="state must be a MixerState or None, got dict"):
        maclaurin.build_mixer("softmax", 32, 4)(x, {})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("softmax", {"rope_theta": 0.0}, "rope_theta must be positive, got 0"),
        ("softmax", {"rope_theta": float("nan")}, "rope_theta must be a finite number"),
        ("softmax", {"head_dim": 2**70}, r"head_dim must be at most 2\*\*62"),
        ("taylor", {"order": 10**9}, "order must be a whole number .* none above 170"),
        ("2mamba", {"fold_every": 2**63}, r"fold_every must be at most 2\*\*62"),
    ],
)
def test_absurd_numbers_are_refused_before_anything_is_made_of_them(name, options, message):
    with pytest.raises(ValueError, match=message):
        maclaurin.build_mixer(name, 32, 4, **options)


def test_an_unknown_published_name_is_refused():
    with pytest.raises(ValueError, match="name must be one of"):
        published_mixer(1, "softmax_unheard_of", 32, 4)
    with pytest.raises(ValueError, match="paper must be one of 1, 2, got 3"):
        published_mixer(3, "softmax", 32, 4)
