"""A step that writes the states where they are gives what the op gives, and leaves them as the op returns them."""

import pytest
import torch

from maclaurin.ops import linear_attention, native
from maclaurin.ops.native.in_place import InPlace

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native library")
B, H, K, V = 3, 4, 9, 21


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("decay", ["none", "head", "channel"])
def test_a_step_in_place_is_a_step(decay, heads, normalize):
    def tokens(count):
        q, k = torch.rand(B, count, H, K), torch.rand(B, count, heads, K)
        a = {"none": None, "head": -torch.rand(B, count, heads), "channel": -torch.rand(B, count, heads, K)}[decay]
        return q, k, torch.randn(B, count, heads, V), a

    _, state = linear_attention(*tokens(12), normalize=normalize)
    kept = InPlace.of(state.recurrent.clone())
    place = kept.recurrent.data_ptr()
    for _ in range(3):
        token = tokens(1)
        wide = [None if x is None else x.double() for x in token]
        expected, _ = linear_attention(*wide, normalize=normalize, state=type(state)(state.recurrent.double()))
        y, state = linear_attention(*token, normalize=normalize, state=state)
        own, after = linear_attention(*token, normalize=normalize, state=kept)
        assert after is kept and kept.recurrent.data_ptr() == place
        torch.testing.assert_close(kept.recurrent, state.recurrent)
        torch.testing.assert_close(own, y)
        torch.testing.assert_close(own.double(), expected, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused():
    q = torch.rand(B, 2, H, K)
    with pytest.raises(ValueError, match="a step in place needs one token and a dense state"):
        linear_attention(q, q, q, state=InPlace.of(torch.zeros(B, H, K, K + 1)))
    q = torch.rand(B, 1, H, K)
    with pytest.raises(ValueError, match="must fit each other"):
        linear_attention(q, q[:1], q, state=InPlace.of(torch.zeros(B, H, K, K + 1)))
    with pytest.raises(ValueError, match="must fit each other"):
        linear_attention(q, q, q, -torch.rand(B, 1, H, K + 1), state=InPlace.of(torch.zeros(B, H, K, K + 1)))
