"""Documents packed in a sequence, said in any collator's words, give what each gives alone."""

import itertools

import pytest
import torch

from maclaurin.models.documents import document_bounds
from tests.models.test_generate import every_mixer, small

LENGTHS = (11, 1, 9, 3)
BOUNDS = [0, 11, 12, 21, 24]
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]
NUMBERS = torch.repeat_interleave(torch.arange(4, dtype=torch.int32), torch.tensor(LENGTHS))[None]
WORDS = {
    "position_ids": {"position_ids": POSITIONS},
    "positions from 2 on": {"position_ids": POSITIONS + 2},
    "seq_idx": {"seq_idx": NUMBERS},
    "cu_seq_lens_q": {"cu_seq_lens_q": torch.tensor(BOUNDS, dtype=torch.int32), "max_length_q": 11},
    "all of TRL": {
        "position_ids": POSITIONS,
        "seq_idx": NUMBERS,
        "cu_seq_lens_q": torch.tensor(BOUNDS, dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor(BOUNDS, dtype=torch.int32),
        "max_length_q": 11,
        "max_length_k": 11,
    },
    "our own": {"cu_seqlens": BOUNDS},
    "beside a mask": {"position_ids": POSITIONS, "attention_mask": torch.ones(1, 24, dtype=torch.long)},
}


def alone(model, ids, bounds=BOUNDS):
    return torch.cat([model(ids[:, a:b]).logits for a, b in itertools.pairwise(bounds)], dim=1)


@every_mixer
def test_documents_never_meet_whatever_positions_say(mixer):
    model = small(mixer)
    ids = torch.randint(1, 50, (1, 24))
    with torch.no_grad():
        torch.testing.assert_close(model(ids, position_ids=POSITIONS).logits, alone(model, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("training", [False, True])
def test_every_collator_says_the_same(words, training):
    """Logits, hidden states and loss, whose targets are never the first tokens of documents."""
    model = small("2mamba").train(training)
    ids = torch.randint(1, 50, (1, 24))
    output = model(ids, labels=ids, output_hidden_states=True, **WORDS[words])
    torch.testing.assert_close(output.logits, alone(model, ids), atol=1e-4, rtol=1e-4)
    assert [hidden.shape for hidden in output.hidden_states] == [(1, 24, 32)] * 3
    losses = [
        model(ids[:, a:b], labels=ids[:, a:b], num_items_in_batch=20).loss
        for a, b in itertools.pairwise(BOUNDS)
        if b > a + 1
    ]
    torch.testing.assert_close(output.loss, sum(losses))


@pytest.mark.parametrize("words", ["position_ids", "seq_idx", "cu_seqlens"])
def test_several_sequences_of_several_documents(words):
    model = small("2mamba")
    ids = torch.randint(1, 50, (2, 24))
    other = [0, 5, 24]
    said = {
        "position_ids": torch.cat([POSITIONS, torch.cat([torch.arange(5), torch.arange(19)])[None]]),
        "seq_idx": torch.cat([NUMBERS, (torch.arange(24) >= 5).int()[None]]),
        "cu_seqlens": [*BOUNDS, 29, 48],
    }[words]
    with torch.no_grad():
        got = model(ids, **{words: said}).logits
        expected = torch.cat([alone(model, ids[:1]), alone(model, ids[1:], other)])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padded_packs(side):
    """A mask beside positions: padding is skipped, and documents are told apart across it."""
    model = small("2mamba")
    ids = torch.randint(1, 50, (1, 24))
    where = {"left": 0, "right": 24, "between": 12}[side]
    padded, positions, mask = (
        torch.cat([x[:, :where], torch.zeros(1, 4, dtype=torch.long), x[:, where:]], dim=1)
        for x in (ids, POSITIONS, torch.ones_like(ids))
    )
    with torch.no_grad():
        output = model(padded, labels=padded, attention_mask=mask, position_ids=positions)
        real = mask[0].bool()
        torch.testing.assert_close(output.logits[:, real], alone(model, ids), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(output.loss, model(ids, labels=ids, cu_seqlens=BOUNDS).loss)


@pytest.mark.parametrize("of_padding", [0, 1, "counted"])
def test_positions_of_padding_are_no_documents(of_padding):
    """generate() gives positions of left padding any value: none of them may split a prompt."""
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1, 1]])
    positions = mask.cumsum(1) - 1
    if of_padding != "counted":
        positions = positions.masked_fill(mask == 0, of_padding)
    assert document_bounds((4, 7), mask, position_ids=positions) is None


def test_one_document_is_no_pack():
    for positions in (torch.arange(7)[None], torch.arange(7)[None] + 100, torch.tensor([[0, 1, 5, 6, 9, 10, 20]])):
        assert document_bounds((1, 7), None, position_ids=positions) is None
    assert document_bounds((3, 1), None, position_ids=torch.tensor([[4], [4], [4]])) is None
    assert document_bounds((1, 7), None, seq_idx=torch.zeros(1, 7)) is None


def test_a_pack_is_refused_where_it_contradicts_itself():
    model = small("2mamba")
    ids = torch.randint(1, 50, (2, 12))
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="state"):
        model(ids, past_key_values=cache, position_ids=torch.arange(12).remainder(4)[None])
    with pytest.raises(ValueError, match="cu_seqlens must have a bound at the start of each of the 2 sequences of 12"):
        model(ids, cu_seqlens=[0, 13, 24])
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with pytest.raises(ValueError, match="give at most one of attention_mask with padding and cu_seqlens"):
        model(ids, cu_seqlens=[0, 12, 24], attention_mask=mask)
