"""Every mechanism as the T x T matrix it stands for: the oracle of the tests and the documentation of the maths.

Nothing here knows states, masks, chunks or speed. Inputs are used in the precision they come in: pass float64.
"""

# B batch, T time of queries, S time of keys, H heads, K key channels, V value channels, F features

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def decay_sums(log_decay_BTH: Tensor) -> Tensor:
    """a_{s+1} + … + a_t for s <= t. The diagonal is 0."""
    T = log_decay_BTH.shape[1]
    # column s of the masked copy holds a_t for t > s only, so a sum down the column never subtracts
    later = torch.ones(T, T, dtype=torch.bool, device=log_decay_BTH.device).tril(-1)
    return torch.where(later, log_decay_BTH.transpose(1, 2)[..., None], 0).cumsum(-2)


def decay_matrix(log_decay_BTH: Tensor) -> Tensor:
    """exp(a_{s+1} + … + a_t) for s <= t, else 0. The diagonal is 1."""
    return decay_sums(log_decay_BTH).exp().tril()


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, torch.zeros_like(numerator), numerator / denominator.masked_fill(zero, 1))


def repeat_heads(x_BTGK: Tensor, heads: int) -> Tensor:
    """Each key-value head serves heads/G query heads that stand next to each other."""
    return x_BTGK.repeat_interleave(heads // x_BTGK.shape[2], dim=2)


def power_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor | None = None,
    *,
    order: int | Iterable[int] = 2,
    scale: float | None = None,
    normalize: bool = True,
    order_weights_HN: Tensor | None = None,
) -> Tensor:
    """Order-p attention behind a decay; with a sequence of orders, those terms of the exponential's series.

    w_ts = f(scale·q_t·k_s) · exp(a_{s+1} + … + a_t) for s <= t,  f(x) = x^p or Σ_n x^n/n!
    y_t  = Σ_s w_ts v_s / Σ_s w_ts, or without the division
    """
    H = q_BTHK.shape[2]
    k_BTHK, v_BTHV = repeat_heads(k_BTHK, H), repeat_heads(v_BTHV, H)
    score_BHTS = default_scale(scale, q_BTHK) * torch.einsum("bthk,bshk->bhts", q_BTHK, k_BTHK)
    if isinstance(order, int):
        weight_BHTS = score_BHTS**order
    else:
        orders = tuple(order)
        w_HN = score_BHTS.new_ones(H, len(orders)) if order_weights_HN is None else order_weights_HN
        terms = [w_HN[:, i, None, None] * score_BHTS**n / float(math.factorial(n)) for i, n in enumerate(orders)]
        weight_BHTS = torch.stack(terms).sum(0)
    if log_decay_BTH is not None:
        weight_BHTS = weight_BHTS * decay_matrix(repeat_heads(log_decay_BTH, H))
    weight_BHTS = weight_BHTS.tril()
    if normalize:
        weight_BHTS = safe_divide(weight_BHTS, weight_BHTS.sum(-1, keepdim=True))
    return torch.einsum("bhts,bshv->bthv", weight_BHTS, v_BTHV)


def linear_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor | None = None,
    *,
    scale: float | None = None,
    normalize: bool = True,
) -> Tensor:
    """First order: w_ts = scale · Σ_c q_tc k_sc exp(a_{s+1,c} + … + a_tc), with a decay per head or key channel."""
    if log_decay is None or log_decay.dim() == 3:
        return power_attention(q_BTHK, k_BTHK, v_BTHV, log_decay, order=1, scale=scale, normalize=normalize)
    H, K = q_BTHK.shape[2:]
    k_BTHK, v_BTHV, log_decay_BTHK = (repeat_heads(x, H) for x in (k_BTHK, v_BTHV, log_decay))
    decay_BHKTS = torch.stack([decay_matrix(log_decay_BTHK[..., c]) for c in range(K)], dim=2)
    weight_BHTS = torch.einsum("bthk,bshk,bhkts->bhts", q_BTHK, k_BTHK, decay_BHKTS) * default_scale(scale, q_BTHK)
    if normalize:
        weight_BHTS = safe_divide(weight_BHTS, weight_BHTS.sum(-1, keepdim=True))
    return torch.einsum("bhts,bshv->bthv", weight_BHTS, v_BTHV)


def softmax_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    numerator: str = "exp",
    divisor: str = "sum",
    score_cap: float | None = None,
) -> Tensor:
    """All orders at once: w_ts = f(min(scale·q_t·k_s, cap)) · exp(a_{s+1} + … + a_t) for s <= t and t - s < window.

    y_t = Σ_s w_ts v_s / n_t with f = exp (or relu) and n_t = Σ_s w_ts, max(Σ_s w_ts, 1), the number of visible keys, or 1
    (divisor "sum", "floored-sum", "count", "none").
    """
    H, T = q_BTHK.shape[2], q_BTHK.shape[1]
    k_BTHK, v_BTHV = repeat_heads(k_BTHK, H), repeat_heads(v_BTHV, H)
    score_BHTS = default_scale(scale, q_BTHK) * torch.einsum("bthk,bshk->bhts", q_BTHK, k_BTHK)
    if score_cap is not None:
        score_BHTS = score_BHTS.clamp(max=score_cap)
    visible_TS = torch.ones(T, T, dtype=torch.bool, device=q_BTHK.device).tril()
    if window is not None:
        visible_TS = visible_TS.triu(1 - window)
    bias_BHTS = 0 * score_BHTS if log_decay_BTH is None else decay_sums(repeat_heads(log_decay_BTH, H))
    if numerator == "exp":
        score_BHTS = (score_BHTS + bias_BHTS).masked_fill(~visible_TS, -math.inf)
        if divisor == "sum":
            # the same weights divided by exp(largest score): scores of 1e4 stay finite
            score_BHTS = score_BHTS - score_BHTS.amax(-1, keepdim=True)
        weight_BHTS = score_BHTS.exp()
    else:
        weight_BHTS = score_BHTS.relu() * bias_BHTS.exp().where(visible_TS, 0)
    sums_BHT1 = weight_BHTS.sum(-1, keepdim=True)
    count_T1 = visible_TS.sum(-1, keepdim=True).to(sums_BHT1)
    n = {"sum": sums_BHT1, "floored-sum": sums_BHT1.clamp(min=1), "count": count_T1, "none": torch.ones_like(count_T1)}
    return torch.einsum("bhts,bshv->bthv", safe_divide(weight_BHTS, n[divisor]), v_BTHV)


def delta_rule(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay: Tensor | None = None,
    *,
    order: int = 1,
    scale: float | None = None,
) -> Tensor:
    """The state decays, then token t moves what its key recalls towards its value by the share β_t.

    S' = exp(a_t) S_{t-1};   S_t = S' + β_t φ(k_t) (v_t - S'ᵀ φ(k_t))ᵀ;   y_t = S_tᵀ φ(scale·q_t)

    a_t is one number per head, log_decay (B,T,H), or at order 1 one per row of the state, (B,T,H,K).
    """
    H = q_BTHK.shape[2]
    k_BTHK, v_BTHV, beta_BTH = (repeat_heads(x, H) for x in (k_BTHK, v_BTHV, beta_BTH))
    key_BTHF = symmetric_power(k_BTHK, order)
    query_BTHF = symmetric_power(default_scale(scale, q_BTHK) * q_BTHK, order)
    state_BHFV = torch.zeros_like(key_BTHF[:, 0, :, :, None] * v_BTHV[:, 0, :, None, :])
    outputs = []
    for t in range(q_BTHK.shape[1]):
        if log_decay is not None:
            state_BHFV = state_BHFV * repeat_heads(log_decay, H)[:, t].reshape(*state_BHFV.shape[:2], -1, 1).exp()
        error_BHV = v_BTHV[:, t] - torch.einsum("bhf,bhfv->bhv", key_BTHF[:, t], state_BHFV)
        change_BHV = beta_BTH[:, t, :, None] * error_BHV
        state_BHFV = state_BHFV + key_BTHF[:, t, :, :, None] * change_BHV[:, :, None]
        outputs.append(torch.einsum("bhf,bhfv->bhv", query_BTHF[:, t], state_BHFV))
    return torch.stack(outputs, dim=1)


def inline_attention(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, *, scale: float | None = None, causal: bool = True
) -> Tensor:
    """w_ts = (scale·q_t·k_s − mean_r scale·q_t·k_r + 1)/n_t over the n_t tokens that t sees; y_t = Σ_s w_ts v_s.

    With causal=False every token sees every token.
    """
    H, T = q_BTHK.shape[2], q_BTHK.shape[1]
    k_BTHK, v_BTHV = repeat_heads(k_BTHK, H), repeat_heads(v_BTHV, H)
    visible_TS = torch.ones(T, T, dtype=q_BTHK.dtype, device=q_BTHK.device)
    if causal:
        visible_TS = visible_TS.tril()
    count_T1 = visible_TS.sum(-1, keepdim=True)
    score_BHTS = default_scale(scale, q_BTHK) * torch.einsum("bthk,bshk->bhts", q_BTHK, k_BTHK)
    mean_BHT1 = (score_BHTS * visible_TS).sum(-1, keepdim=True) / count_T1
    weight_BHTS = (score_BHTS - mean_BHT1 + 1) / count_T1 * visible_TS
    return torch.einsum("bhts,bshv->bthv", weight_BHTS, v_BTHV)


def mean_filter(
    x_BTHI: Tensor, v_BTHV: Tensor, first_HIC: Tensor, first_bias_HC: Tensor, second_HCE: Tensor, second_bias_HE: Tensor
) -> Tensor:
    """y_t = Σ_w R_t[w] ⊙ v_{t-(W-1)+w}, R_t = gelu(mean_{s<=t} x_s · first + first_bias) · second + second_bias."""
    count_T11 = torch.arange(1, x_BTHI.shape[1] + 1, dtype=x_BTHI.dtype, device=x_BTHI.device)[:, None, None]
    hidden_BTHC = F.gelu(torch.einsum("bthi,hic->bthc", x_BTHI.cumsum(1) / count_T11, first_HIC) + first_bias_HC)
    taps_BTHE = torch.einsum("bthc,hce->bthe", hidden_BTHC, second_HCE) + second_bias_HE
    taps_BTHWV = taps_BTHE.unflatten(-1, (-1, v_BTHV.shape[-1]))
    W = taps_BTHWV.shape[3]
    windows_BTHVW = F.pad(v_BTHV, (0, 0, 0, 0, W - 1, 0)).unfold(1, W, 1)
    return torch.einsum("bthwv,bthvw->bthv", taps_BTHWV, windows_BTHVW)


def linear_scan(x_BTC: Tensor, log_decay_BTC: Tensor) -> Tensor:
    """h_t = exp(a_t)·h_{t-1} + x_t in every channel, that is h = Λ x with Λ_ts = exp(a_{s+1} + … + a_t) for s <= t."""
    return torch.einsum("bcts,bsc->btc", decay_matrix(log_decay_BTC), x_BTC)


def gated_scan(u_BTC: Tensor, gates_BTD: Tensor, g_BTC: Tensor) -> Tensor:
    """y_t = gelu(g_t)⊙σ(o_t)⊙h_t with h_t = σ(f_t)⊙h_{t-1} + σ(i_t)⊙u_t, for gates (f, i, o) side by side."""
    f, i, o = gates_BTD.chunk(3, dim=-1)
    h_BTC = linear_scan(i.sigmoid() * u_BTC, F.logsigmoid(f))
    return F.gelu(g_BTC) * o.sigmoid() * h_BTC


def selective_scan(x_BTC: Tensor, dt_BTC: Tensor, rate_CN: Tensor, b_BTN: Tensor, c_BTN: Tensor) -> Tensor:
    """S6: h_t = exp(-dt_t·rate)⊙h_{t-1} + (dt_t⊙x_t) b_tᵀ with h a matrix (C, N), and y_t = h_t c_t."""
    x_BTCN = (dt_BTC * x_BTC)[..., None] * b_BTN[:, :, None]
    a_BTCN = -dt_BTC[..., None] * rate_CN
    h_BTCN = linear_scan(x_BTCN.flatten(2), a_BTCN.flatten(2)).view(x_BTCN.shape)
    return torch.einsum("btcn,btn->btc", h_BTCN, c_BTN)


def mlstm(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    input_gate_BTH: Tensor,
    forget_gate_BTH: Tensor,
    *,
    input_gate_kind: str = "exp",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float | None = None,
) -> Tensor:
    """w_ts = scale·q_t·k_s · exp(D_ts), D_ts = log σ(f_{s+1}) + … + log σ(f_t) + log g(i_s) for s <= t;  g = exp or σ

    y_t = Σ_s w_ts v_s / (max(|Σ_s w_ts|, 1) + eps·exp(m_t)),  m_t = max(0, max_s D_ts), or without the division.
    All of it is divided by exp(m_t), so that no exponential is above 1.
    """
    H = q_BTHK.shape[2]
    k_BTHK, v_BTHV = repeat_heads(k_BTHK, H), repeat_heads(v_BTHV, H)
    log_input_BTH = input_gate_BTH if input_gate_kind == "exp" else F.logsigmoid(input_gate_BTH)
    T = q_BTHK.shape[1]
    future_TS = torch.ones(T, T, dtype=torch.bool, device=q_BTHK.device).triu(1)
    D_BGTS = decay_sums(F.logsigmoid(forget_gate_BTH)) + log_input_BTH.transpose(1, 2)[..., None, :]
    D_BHTS = D_BGTS.masked_fill(future_TS, -math.inf).repeat_interleave(H // D_BGTS.shape[1], dim=1)
    m_BHT1 = D_BHTS.amax(-1, keepdim=True).clamp(min=0) if normalize else torch.zeros_like(D_BHTS[..., :1])
    score_BHTS = default_scale(scale, q_BTHK) * torch.einsum("bthk,bshk->bhts", q_BTHK, k_BTHK)
    weight_BHTS = score_BHTS * (D_BHTS - m_BHT1).exp()
    if normalize:
        weight_BHTS = weight_BHTS / (weight_BHTS.sum(-1, keepdim=True).abs().maximum((-m_BHT1).exp()) + eps)
    return torch.einsum("bhts,bshv->bthv", weight_BHTS, v_BTHV)


def short_conv(x_BTC: Tensor, weight_CW: Tensor, bias_C: Tensor | None = None) -> Tensor:
    """y_t = b + Σ_r w[:, r] ⊙ x_{t-(width-1)+r}: the last tap is the current token, nothing comes before the first."""
    width = weight_CW.shape[1]
    padded_BTC = F.pad(x_BTC, (0, 0, width - 1, 0))
    y_BTC = sum(weight_CW[:, r] * padded_BTC[:, r : r + x_BTC.shape[1]] for r in range(width))
    return y_BTC if bias_C is None else y_BTC + bias_C  # type: ignore[return-value]


def rotary(x_BTHK: Tensor, positions_BT: Tensor, *, theta: float = 10000.0, interleaved: bool = False) -> Tensor:
    """Each pair of channels (a, b) turns by the angle position · theta^(-2i/K): complex multiplication by exp(iα).

    Pairs are (i, i + K/2), or (2i, 2i + 1) if interleaved.
    """
    K = x_BTHK.shape[-1]
    frequency_I = theta ** (-torch.arange(0, K, 2, dtype=torch.float64, device=x_BTHK.device) / K)
    angle_BTI = positions_BT.double()[..., None] * frequency_I
    turn_BT1I = torch.polar(torch.ones_like(angle_BTI), angle_BTI)[:, :, None]
    if interleaved:
        return torch.view_as_real(torch.view_as_complex(x_BTHK.double().unflatten(-1, (-1, 2))) * turn_BT1I).flatten(-2)
    turned = torch.complex(*x_BTHK.double().chunk(2, dim=-1)) * turn_BT1I
    return torch.cat([turned.real, turned.imag], dim=-1)


def scalar_mlp(u: Tensor, weight_in_N: Tensor, bias_in_N: Tensor, weight_out_NL: Tensor, bias_out_L: Tensor) -> Tensor:
    """A two-layer ReLU network of one number: u (...) -> (..., L)."""
    return (u[..., None] * weight_in_N + bias_in_N).relu() @ weight_out_NL + bias_out_L


def symmetric_power(x: Tensor, order: int = 2) -> Tensor:
    """φ with φ(x)·φ(y) = (x·y)^order: one entry a monomial, times the root of how often it occurs."""
    indices = list(_multisets(x.shape[-1], order))
    columns = []
    for index in indices:
        repeats = math.prod(math.factorial(index.count(i)) for i in set(index))
        columns.append(math.sqrt(math.factorial(order) / repeats) * x[..., list(index)].prod(-1))
    return torch.stack(columns, dim=-1)


def _multisets(dim: int, order: int, start: int = 0) -> Iterable[tuple[int, ...]]:
    if order == 0:
        yield ()
        return
    for first in range(start, dim):
        for rest in _multisets(dim, order - 1, first):
            yield (first, *rest)


def default_scale(scale: float | None, q: Tensor) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale
