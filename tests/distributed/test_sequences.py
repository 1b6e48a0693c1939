"""Sequences cut over processes, or in time: the loss and every gradient are those of whole sequences."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from maclaurin.distributed import backward_in_chunks, loss_in_chunks, sequence_parallel, slice_of, sum_gradients
from maclaurin.distributed.balance import Load, given_away
from maclaurin.distributed.messages import Messages
from maclaurin.mixers import Mixer, available_mixers, build_mixer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from tests.mixers.test_laws import SMALL_STATES
from tests.mixers.test_laws import VARIANTS as MIXER_VARIANTS
from tests.ranks import on_ranks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
MIXERS = [name for name in available_mixers() if build_mixer(name, 16, 2).has_states]
TOKENS = 23
# states that fold or end within a few tokens, and options that change what a mixer carries
OWN_CASES = {
    "window": ("softmax", {"window": 5}),
    "position": ("2mamba", {"value_norm": "position", "fold_at": 9, "fold_every": 4}),
    "shared keys": ("2mamba", {"shared_keys": True, "gate": True, "skip": True, "fold_at": 9, "fold_every": 4}),
    "convolution and positions": ("linear", {"conv_width": 4, "rotary": "rope"}),
    "cumulative gate": ("gated-softmax", {"divisor": "cumulative-gate"}),
    "groups of mamba2": ("mamba2", {"n_groups": 2}),
    "inline without filter": ("inline", {"local_residual": False, "learn_scale": True}),
}
VARIANTS = (
    {f"small {name}": (name, options) for name, options in SMALL_STATES.items()}
    | {name: (mixer, SMALL_STATES.get(mixer, {}) | options) for name, (mixer, options) in MIXER_VARIANTS.items()}
    | OWN_CASES
)

# of gradients, relative to the largest entry of each parameter's
LARGEST = {torch.float64: 1e-9, torch.float32: 1e-4}


def model_of(*mixers, dtype=torch.float64):
    torch.manual_seed(0)
    config = MaclaurinConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=len(mixers),
        num_attention_heads=2,
        mixer=list(mixers),
    )
    return MaclaurinForCausalLM(config).to(dtype).train()


def variant(name, dtype=torch.float64):
    torch.manual_seed(0)
    mixer, options = VARIANTS[name]
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = MaclaurinConfig(vocab_size=11, **sizes, mixer=mixer, mixer_options=options)
    return MaclaurinForCausalLM(config).to(dtype).train()


def batch_of(packed):
    torch.manual_seed(1)
    ids = torch.randint(11, (1 if packed else 2, TOKENS))
    # documents that cross the borders 7 and 13, or begin there, and one that spans a slice
    return {"input_ids": ids, "labels": ids} | ({"cu_seqlens": torch.tensor([0, 3, 7, 17, TOKENS])} if packed else {})


def whole(model, batch):
    model(**batch).loss.backward()
    return gradients(model)


def gradients(model):
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


def largest_difference(got, expected):
    assert got.keys() == expected.keys()
    return max(float((got[name] - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-3)) for name in got)


def on_slices(model, batch, borders, rank, checkpointing=False, exchange="chain"):
    """The gradient of this process, all of them summed, and the bytes it received."""
    if checkpointing:
        model.gradient_checkpointing_enable()
    start, stop = borders[rank], borders[rank + 1]
    bounds = batch.get("cu_seqlens")
    starts = 1 if bounds is None else len(bounds) - 1
    items = batch["labels"].numel() - starts * batch["labels"].shape[0]
    with sequence_parallel(exchange=exchange) as chain:
        model(**slice_of(batch, start, stop), num_items_in_batch=items).loss.backward()
    sum_gradients(model.parameters())
    return gradients(model), chain.received_bytes


@needs_fork
@pytest.mark.parametrize(
    ("exchange", "dtype"),
    [
        ("chain", torch.float64),
        ("chain", torch.float32),
        ("fold", torch.float64),
        ("gather", torch.float64),
        pytest.param("fold", torch.float32, marks=pytest.mark.slow),
        pytest.param("gather", torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_mixer_on_two_and_four_processes(packed, exchange, dtype):
    """In one job for all of them: starting processes takes longer than the work."""
    batch = batch_of(packed)
    borders = {2: [0, 13, TOKENS], 4: [0, 7, 8, 13, TOKENS]}

    def work(rank, count):
        models = {name: model_of(name, name, dtype=dtype) for name in MIXERS}
        if count == 4:
            models |= {name: variant(name, dtype) for name in VARIANTS}
        worst = {}
        for name, model in models.items():
            expected = whole(model, batch)
            got = on_slices(model, batch, borders[count], rank, exchange=exchange)[0]
            worst[name] = largest_difference(got, expected)
        return worst

    for count in borders:
        for worst in on_ranks(count, lambda rank, count=count: work(rank, count), group=True):
            assert {name: found for name, found in worst.items() if not found <= LARGEST[dtype]} == {}


@needs_fork
def test_hybrids_with_checkpointed_layers_and_bytes_that_do_not_grow():
    batch, model = batch_of(packed=True), model_of("2mamba", "softmax", "gated-delta")
    expected = whole(model, batch)

    def received(model, tokens):
        ids = torch.zeros(1, 2 * tokens, dtype=torch.long)
        return on_slices(model, {"input_ids": ids, "labels": ids}, [0, tokens, 2 * tokens], int(os.environ["RANK"]))[1]

    def work(rank):
        found = (
            on_slices(model, batch, [0, 13, TOKENS], rank, checkpointing=True, exchange=exchange)[0]
            for exchange in ("chain", "fold", "gather")
        )
        worst = max(largest_difference(again, expected) for again in found)
        return worst, received(model_of("mamba2"), 20), received(model_of("mamba2"), 40)

    for worst, few, many in on_ranks(2, work, group=True):
        assert worst <= 1e-9
        assert 0 < few == many


@needs_fork
@pytest.mark.parametrize("exchange", ["fold", "gather"])
def test_states_and_their_gradients_come_while_a_slice_is_computed(exchange, monkeypatch):
    """What comes is asked for before the work of the slice, forward and backward, once its shapes are known."""
    model, happened = model_of("gla"), []
    asked, fold = Messages.expect, Mixer.fold

    def noted(name, function):
        def called(*args, **kwargs):
            happened.append(name)
            return function(*args, **kwargs)

        return called

    def work(rank):
        monkeypatch.setattr(Messages, "expect", noted("asked", asked))
        monkeypatch.setattr(Mixer, "fold", noted("folded", fold))
        model.model.layers[0].mixer.out_proj.weight.register_hook(lambda _: happened.append("backward"))
        for _ in range(2):
            happened.clear()
            on_slices(model, batch_of(False), [0, 13, TOKENS], rank, exchange=exchange)
        return list(happened)

    first, second = on_ranks(2, work, group=True)
    assert first == ["folded", "asked", "backward"]
    assert second == ["asked", "folded", "backward"]


@needs_fork
def test_softmax_gives_its_first_tokens_to_the_process_that_has_less_to_do():
    """Two layers on three processes: the one in the middle has no partner, the other two share the queries of the last."""
    tokens, rows = 24, []
    ids = torch.zeros(1, tokens, dtype=torch.long)

    def work(rank):
        model = model_of("softmax", "2mamba", "softmax")
        for layer in (0, 2):
            mixer = model.model.layers[layer].mixer
            mixer.out_proj.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[1]))
        expected = whole(model, {"input_ids": ids, "labels": ids})
        rows.clear()
        got = on_slices(model, {"input_ids": ids, "labels": ids}, [0, 8, 16, 24], rank, exchange="gather")[0]
        return largest_difference(got, expected), sum(rows)

    (_, light), (_, middle), (_, heavy) = found = on_ranks(3, work, group=True)
    assert max(worst for worst, _ in found) <= 1e-9
    # each layer folds its slice, which needs no pairs, and what it gives away
    given = given_away([Load.of([0, 8])] * 3, 2, 3)
    assert given > 0
    assert (light, middle, heavy) == (2 * (8 + given + 8), 2 * (8 + 8), 2 * (8 + given + 8 - given))


@pytest.mark.parametrize("packed", [False, True])
def test_chunks_in_time_give_the_gradients_of_whole_sequences(packed):
    batch, worst = batch_of(packed), {}
    models = {name: model_of(name, name) for name in MIXERS} | {name: variant(name) for name in VARIANTS}
    for name, model in models.items():
        loss = model(**batch).loss
        loss.backward()
        expected = gradients(model)
        got = backward_in_chunks(model, batch, 4)
        assert float(got) == pytest.approx(float(loss.detach()), abs=1e-12)
        assert float(loss_in_chunks(model, batch, 4)) == pytest.approx(float(got), abs=1e-12)
        worst[name] = largest_difference(gradients(model), expected)
    assert {name: found for name, found in worst.items() if not found <= 1e-9} == {}


@pytest.mark.slow
def test_eight_times_the_tokens_in_slices_take_at_most_a_third_more_memory():
    """Peak memory of processes that take forward and backward of a model of four layers."""

    def peak(tokens, chunks):
        script = Path(__file__).parents[2] / "scripts" / "sequence_memory.py"
        words = [sys.executable, script, str(tokens), str(chunks)]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return float(re.search(r"([\d,]+) MiB", said)[1].replace(",", ""))

    assert peak(262144, 16) <= 1.3 * peak(32768, 1)


@torch.no_grad()
def test_states_of_slices_of_every_mixer_join():
    torch.manual_seed(0)
    x = torch.randn(2, TOKENS, 16, dtype=torch.float64)
    mixers = {name: build_mixer(name, 16, 2) for name in MIXERS}
    mixers |= {"short window": build_mixer("sliding-window", 16, 2, window=6)}
    mixers |= {"long filter": build_mixer("inline", 16, 2, local_width=6)}
    for name, mixer in mixers.items():
        mixer.double()
        for border in (3, 9, 20):  # the first and the last within a window, and within a filter
            first, _ = mixer.fold(x[:, :border])
            start = replace(mixer.init_state(2), conv=first.conv, position=first.position)
            second, transition = mixer.fold(x[:, border:], start)
            joined = replace(second, attention=second.attention.after(first.attention, transition)).tensors()
            expected = mixer.fold(x)[0].tensors()
            torch.testing.assert_close(joined, expected, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_slices_of_every_mixer_can_be_folded_apart():
    assert [name for name in MIXERS if not build_mixer(name, 16, 2).folds] == []
    selective = build_mixer("linear", 16, 2, rotary="selective")
    with pytest.raises(ValueError, match="slices of the mixer 'linear' cannot be folded apart and joined"):
        selective.fold(torch.zeros(1, 3, 16))


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(ValueError, match="must have input_ids, labels, cu_seqlens only, got 'attention_mask'"):
        slice_of(batch_of(False) | {"attention_mask": None}, 0, 4)
    with pytest.raises(ValueError, match="packed in one sequence to be cut, got 2"):
        slice_of(batch_of(False) | {"cu_seqlens": torch.tensor([0, 46])}, 0, 4)
    with pytest.raises(ValueError, match="23 tokens cannot be cut into 24 slices"):
        backward_in_chunks(model_of("linear"), batch_of(False), 24)
