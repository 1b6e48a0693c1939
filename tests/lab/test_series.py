"""Series: every order is a network, their sum is softmax, errors stay below their bound, and wrong ones are noticed."""

from __future__ import annotations

import math

import pytest
import torch

from maclaurin.lab.experiments.series import SPREADS, Study, Trained, identity_part, layer_part, series, truncation_part
from maclaurin.lab.experiments.series import orders as exponential
from maclaurin.lab.experiments.series.orders import layer_orders, of_gaussian, orders_of_scores
from maclaurin.lab.traces import of_tokens
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_every_order_is_a_recurrent_network(order: int) -> None:
    assert exponential.check_order(order, 20, 4, 1.0, 0) < 1e-13


def test_the_networks_of_two_orders_differ() -> None:
    q, k, v = exponential.draw(20, 4, 1.0, 0)
    assert (exponential.tensor_network(q, k, v, 2) - exponential.term(q, k, v, 3, "recurrent")).abs().max() > 0.1


def test_their_sum_is_softmax() -> None:
    assert all(claim.held for claim in identity_part(0).claims)


@pytest.mark.parametrize("coefficient", [lambda n: 1.0, lambda n: 1 / math.factorial(n + 1), lambda n: 2.0**-n])
def test_other_coefficients_give_no_softmax(coefficient: exponential.Coefficient) -> None:
    assert [claim.held for claim in identity_part(0, coefficient).claims][-2:] == [False, False]


def found(bound: exponential.Bound = exponential.lagrange) -> dict[float, list[exponential.Truncation]]:
    return {spread: exponential.truncations(spread, range(1, 21), 64, 8, 0, bound) for spread in SPREADS}


def test_errors_stay_below_the_bound() -> None:
    assert all(claim.held for claim in truncation_part(found()).claims)


def test_a_bound_without_its_factor_is_broken() -> None:
    def too_small(score: torch.Tensor, order: int) -> torch.Tensor:
        return exponential.lagrange(score, order) * (-score.abs()).exp()

    assert not any(claim.held for claim in truncation_part(found(too_small)).claims if claim.key == "bound")


def test_larger_scores_need_more_orders() -> None:
    needed = [exponential.orders_needed(spread, 0.01, 64, 8, range(4), 60) for spread in SPREADS]
    assert needed == sorted(needed) and needed[0][-1] < needed[-1][0]
    moved = [one.moved for one in found()[1.0]]
    assert moved[-1] < 1e-6 < 0.1 < moved[0]


def test_the_orders_needed_count_from_the_last_that_misses_a_share() -> None:
    """Against the errors of the other computation, and of large scores given as a range: one draw says little."""
    moved = {one.order: one.moved for one in exponential.truncations(2.0, range(1, 41), 64, 8, 5)}
    (needed,) = exponential.orders_needed(2.0, 0.01, 64, 8, [5], 40)
    assert needed == max(order for order, share in moved.items() if share > 0.01) + 1
    assert exponential.orders_needed(2.0, 1e-9, 64, 8, [5], 10) == [11]
    low, *_, high = exponential.orders_needed(4.0, 0.01, 64, 8, range(10), 60)
    assert high > 1.2 * low
    (grid,) = truncation_part(found()).grids
    assert all("–" in row[-2] or "above" in row[-2] for row in grid.rows[1:])


@pytest.mark.parametrize("size", [0.3, 1.5, 7.4])
def test_the_dominant_order_of_equal_scores_is_their_size(size: float) -> None:
    """xⁿ/n! grows while n < x: its largest n is ⌊x⌋. Signs make no difference, and later keys are not seen."""
    scores = torch.full((1, 2, 6, 6), size, dtype=torch.float64).tril()
    scores[:, 1] *= -1
    layer = orders_of_scores(0, "softmax", scores + 50 * torch.ones(6, 6).triu(1))
    assert layer.dominant == math.floor(size)
    assert layer.by_query == (math.floor(size),) * 3
    assert layer.largest == pytest.approx(size)
    assert layer.log_terms[0] == pytest.approx(0, abs=1e-12)  # mean of |X|⁰


def test_the_probe_of_gaussian_scores() -> None:
    layers = [orders_of_scores(0, "softmax", 5.5 + 0.1 * torch.eye(4, dtype=torch.float64)[None, None])]
    assert [claim.held for claim in layer_part(layers, 0).claims] == [True, True]
    assert layer_part(layers, 0, scale=2.0).claims[0].held is False
    assert abs(of_gaussian(16.0) - 16) <= 1


def tiny(mixer: str, **options: object) -> MaclaurinForCausalLM:
    torch.manual_seed(0)
    return MaclaurinForCausalLM(
        MaclaurinConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            mixer=mixer,
            mixer_options=options,
        )
    ).eval()


def test_layers_of_a_model() -> None:
    ids = torch.arange(24).view(2, 12)
    model = tiny("softmax")
    small = layer_orders(of_tokens("tiny", model, ids))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mixer.qkv_proj.weight[:32] *= 8  # queries and keys: scores are 64 times larger
    large = layer_orders(of_tokens("tiny", model, ids))
    assert [layer.layer for layer in small] == [0, 1]
    assert large[0].variance == pytest.approx(64**2 * small[0].variance, rel=1e-4)
    assert large[0].dominant > small[0].dominant
    assert len(layer_orders(of_tokens("tiny", tiny("linear"), ids))) == 2
    with pytest.raises(ValueError, match="no layer with scores q·k: its mixers are delta"):
        layer_orders(of_tokens("tiny", tiny("delta"), ids))
    with pytest.raises(ValueError, match="no layer with queries and keys: its mixers are s6"):
        layer_orders(of_tokens("tiny", tiny("s6"), ids))


def runs(*losses: float) -> list[Trained]:
    return [Trained(None, loss) for loss in losses]


def test_what_the_study_claims() -> None:
    good = Study(runs(2.0, 2.02), {1: runs(3.0, 3.1), 2: runs(2.2, 2.2), 4: runs(2.01, 2.03)})
    assert [claim.held for claim in good.part().claims] == [True, True, True]
    odd = Study(runs(2.0, 2.02), {1: runs(3.0, 3.1), 2: runs(2.2, 2.2), 3: runs(2.5, 2.5)})
    assert [claim.held for claim in odd.part().claims] == [True, False, False]
    apart = Study(runs(2.0, 2.6), {1: runs(2.5, 3.1), 2: runs(2.0, 2.6)})  # seeds differ more than models, which are paired
    assert apart.part().claims[0].held is True
    drowned = Study(runs(2.0, 2.4), {1: runs(2.3, 2.3), 2: runs(2.2, 2.2)})
    assert drowned.part().claims[0].held is False


@pytest.mark.slow
def test_the_whole_experiment(tmp_path) -> None:
    from maclaurin.data import byte_tokenizer

    model = tiny("softmax")
    model.resize_token_embeddings(257)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    looked_at = series(checkpoint=str(tmp_path), tokens=32, texts=2)
    assert looked_at.settings["model"] == str(tmp_path) and len(looked_at.plot()) == 3
    assert "P1.2" not in {claim.key for claim in looked_at.claims}
    result = series(quick=True, orders=(1, 2), steps=3, seeds=1, tokens=32, texts=2)
    assert [claim.held for claim in result.claims if claim.key.startswith(("P1.1", "bound"))] == [True] * 10
    assert "order 2" in result.table() and len(result.plot()) == 4
    with pytest.raises(ValueError, match="is no folder"):
        series(checkpoint=str(tmp_path / "none"))
