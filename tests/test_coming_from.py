"""What docs/coming-from.md says of other libraries: their signatures, and their numbers with its mapping."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch

import maclaurin
from maclaurin.ops import DeltaState, LinearState, delta_rule, linear_attention

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text()
needs_fla = pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="no fla-core")

B, T, H, K, V = 2, 37, 3, 8, 5
# where fla defines the functions that the page calls, and the arguments it names, in their order
FLA = {
    "chunk_simple_gla": ("simple_gla/chunk.py", ["q", "k", "v", "g", "scale", "initial_state", "output_final_state"]),
    "chunk_gla": ("gla/chunk.py", ["q", "k", "v", "g", "scale", "initial_state", "output_final_state"]),
    "chunk_linear_attn": ("linear_attn/chunk.py", ["q", "k", "v", "scale", "initial_state", "normalize", "cu_seqlens"]),
    "chunk_delta_rule": ("delta_rule/chunk.py", ["q", "k", "v", "beta", "use_qk_l2norm_in_kernel"]),
    "chunk_gated_delta_rule": ("gated_delta_rule/chunk.py", ["q", "k", "v", "g", "beta", "use_qk_l2norm_in_kernel"]),
    "chunk_retention": ("retention/chunk.py", ["q", "k", "v"]),
}


@pytest.fixture
def drawn():
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(B, T, H, K),
        torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1),
        torch.randn(B, T, H, V),
    )
    return q, k, v, torch.nn.functional.logsigmoid(torch.randn(B, T, H)), torch.randn(B, H, K, V)


def test_the_mixers_of_the_tables_can_be_built():
    calls = re.findall(r"`(build_mixer\([^`]*\))`", PAGE)
    assert len(calls) >= 6
    with torch.device("meta"):
        for call in calls:
            assert eval(call, {"build_mixer": maclaurin.build_mixer}).d_model


@needs_fla
@pytest.mark.parametrize("name", FLA)
def test_the_signatures_of_fla_are_those_of_the_page(name):
    file, named = FLA[name]
    (folder,) = importlib.util.find_spec("fla").submodule_search_locations
    tree = ast.parse((Path(folder) / "ops" / file).read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    arguments = [argument.arg for argument in function.args.args]
    assert [argument for argument in arguments if argument in named] == named
    assert f"{name}(" in PAGE
    for call in re.findall(rf"{name}\(([^)]*)\)", PAGE):
        given = [part.split("=")[0].strip() for part in call.split(",") if part.strip() != "…"]
        assert [argument for argument in arguments if argument in given] == given, "as the page writes the call"


@needs_fla
def test_simple_gla_is_linear_attention_with_the_log_decay_and_state_as_they_are(drawn):
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla, naive_recurrent_simple_gla

    q, k, v, g, S0 = drawn
    o, after = linear_attention(q, k, v, g, normalize=False, state=LinearState(S0))
    for theirs in (naive_recurrent_simple_gla, naive_chunk_simple_gla):
        expected, S = theirs(q, k, v, g, initial_state=S0.clone(), output_final_state=True)
        assert torch.allclose(o, expected, atol=1e-5)
    expected, S = naive_recurrent_simple_gla(q, k, v, g, initial_state=S0.clone(), output_final_state=True)
    assert torch.allclose(after.recurrent, S, atol=1e-5)
    assert not torch.allclose(linear_attention(q, k, v, g, state=None)[0], expected, atol=1e-2), "the division counts"


@needs_fla
def test_gla_is_linear_attention_with_a_decay_per_channel(drawn):
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v, _, S0 = drawn
    gk = torch.nn.functional.logsigmoid(torch.randn(B, T, H, K)) / 16
    o, after = linear_attention(q, k, v, gk, normalize=False, state=LinearState(S0))
    expected, S = naive_recurrent_gla(q, k, v, gk, initial_state=S0.clone(), output_final_state=True)
    assert torch.allclose(o, expected, atol=1e-5) and torch.allclose(after.recurrent, S, atol=1e-5)


@needs_fla
def test_linear_attention_is_divided_by_its_sum_and_keeps_it_as_a_column(drawn):
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn

    q, k, v, _, _ = drawn
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    o, after = linear_attention(q, k, v)
    expected, (S, z) = naive_recurrent_linear_attn(q, k, v, normalize=True, output_final_state=True)
    assert torch.allclose(o, expected, atol=1e-5) and torch.allclose(after.recurrent[..., :-1], S, atol=1e-4)
    assert torch.allclose(after.recurrent[..., -1], z[:, 0], atol=1e-4)


@needs_fla
@pytest.mark.parametrize("gated", [False, True])
def test_the_delta_rule_has_its_decay_last(drawn, gated):
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    q, k, v, g, S0 = drawn
    beta = torch.rand(B, T, H)
    o, after = delta_rule(q, k, v, beta, g if gated else None, state=DeltaState(S0))
    if gated:
        expected, S = naive_recurrent_gated_delta_rule(q, k, v, beta, g, initial_state=S0.clone(), output_final_state=True)
    else:  # heads first
        expected, S = delta_rule_recurrence(*(x.transpose(1, 2) for x in (q, k, v, beta)), initial_state=S0.clone())
        expected = expected.transpose(1, 2)
    assert torch.allclose(o, expected, atol=1e-5) and torch.allclose(after.recurrent, S, atol=1e-5)


def test_mamba_is_linear_attention_with_a_transposed_state():
    """The recurrence of mamba_chunk_scan_combined, by its documented shapes."""
    torch.manual_seed(0)
    x, dt, A = torch.randn(2, T, 4, 6), torch.rand(2, T, 4), -torch.rand(4)
    B_, C_ = torch.randn(2, T, 1, 8), torch.randn(2, T, 1, 8)
    S, rows = torch.zeros(2, 4, 6, 8), []
    for t in range(T):
        S = (dt[:, t] * A).exp()[..., None, None] * S + (dt[:, t, :, None] * x[:, t])[..., None] * B_[:, t, :, None]
        rows.append((S * C_[:, t, :, None]).sum(-1))
    keys, queries = (part.repeat_interleave(4, dim=2) for part in (B_, C_))
    y, after = linear_attention(queries, keys, x * dt[..., None], dt * A, scale=1.0, normalize=False)
    assert torch.allclose(y, torch.stack(rows, 1), atol=1e-4)
    assert torch.allclose(after.recurrent.transpose(-1, -2), S, atol=1e-4)


def test_power_retention_is_power_attention():
    """(scale·q·k)² behind the sums of log_G, over its sum, by its documented definition."""
    from maclaurin.ops import power_attention

    torch.manual_seed(0)
    Q, K_, V_ = torch.randn(2, T, 4, 8), torch.randn(2, T, 2, 8), torch.randn(2, T, 2, 5)
    log_G = torch.nn.functional.logsigmoid(torch.randn(2, T, 2))
    sums = log_G.cumsum(1).repeat_interleave(2, dim=2).transpose(1, 2)
    scores = torch.einsum("bthd,bshd->bhts", Q, K_.repeat_interleave(2, dim=2)) / 8**0.5
    weights = (scores**2 * (sums[..., :, None] - sums[..., None, :]).tril().exp()).tril()
    expected = torch.einsum("bhts,bshv->bthv", weights / weights.sum(-1, keepdim=True), V_.repeat_interleave(2, dim=2))
    y, _ = power_attention(Q, K_, V_, log_G, order=2)
    assert torch.allclose(y, expected, atol=1e-4)
