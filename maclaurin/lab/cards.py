"""The report card: what the lab can tell of a mechanism, several side by side, or why it cannot be asked."""

# H heads, T tokens

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.common.progress import Status
from maclaurin.common.sizes import size_text
from maclaurin.evals.cells import Cell, Setting
from maclaurin.evals.learn import learn
from maclaurin.evals.suites.rows import mqar, rows_of
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import block_ranks, generator, normal
from maclaurin.lab.experiments.dynamics import to_dsf
from maclaurin.lab.experiments.dynamics.convert import UnknownSystemError, drawn
from maclaurin.lab.experiments.injectivity import SAME, TOLERANCE, TOLERANCES, confusion, told_apart
from maclaurin.lab.experiments.separation import Setting as Separation
from maclaurin.lab.experiments.separation import probe
from maclaurin.lab.mechanisms import mechanism
from maclaurin.lab.result import Curve, Grid, Part, Plot, Result
from maclaurin.lab.traces import Layer, OfTransformers, Traced, checkpoint
from maclaurin.mixers import weights
from maclaurin.mixers.attention import Attention
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.overview import explanation
from maclaurin.mixers.registry import available_mixers, build_mixer

STATE_AT = (1024, 65536)  # tokens
COST_AT, PHASES = (1024, 4096), ("training", "decoding")
NEAR = 3  # tokens, the last ones
PAIRS = 8  # to remember in the recall
SHARE = 0.9  # of the weights that lie within its reach
NOTES = (
    "Mixers are as they start: decays and gates that training would change are those of the initialisation.",
    "A needle is found if the threshold a1*(n) does not grow with n: softmax n^0, order p n^(1/(p+1)).",
)


@dataclass(frozen=True)
class Subject:
    """kinds: the names of its layers' mixers, each once. weights: (H,T,T) per layer, what of token s is in t, of those that
    are known. states: per value channel, a number per layer that is a finite recurrence.
    """

    name: str
    kinds: Sequence[str]
    layers: Sequence[Mixer]
    weights: Sequence[Tensor]
    states: Sequence[int]
    trained: Traced | None

    @property
    def mixer(self) -> str:
        if len(self.kinds) > 1:
            raise ValueError("its layers have different mixers")
        return self.kinds[0]

    @property
    def known(self) -> bool:
        return len(self.weights) == len(self.layers)

    @property
    def known_weights(self) -> Sequence[Tensor]:
        if not self.known:
            raise ValueError("not applicable: its weights are not written out")
        return self.weights

    def ranks(self) -> list[int]:
        """The largest of the heads, per layer."""
        return [max(block_ranks(weights_HTT)) for weights_HTT in self.known_weights]

    def shares(self) -> Tensor:
        """(T,): the mean share of a weight by its distance, for the last quarter of the queries, over heads and layers."""
        shares = []
        for weights_HTT in self.known_weights:
            T = weights_HTT.shape[1]
            for t in range(3 * T // 4, T):
                row_HT = weights_HTT[:, t, : t + 1].abs().flip(-1)
                row_HT = row_HT / row_HT.sum(-1, keepdim=True).clamp(min=1e-300)
                shares.append(torch.nn.functional.pad(row_HT.mean(0), (0, T - t - 1)))
        return torch.stack(shares).mean(0)


def card(
    *names: str,
    quick: bool = False,
    seed: int = 0,
    d_model: int = 64,
    num_heads: int = 4,
    tokens: int = 128,
    recall_steps: int | None = None,
) -> Result:
    """The report card of mixers, by name, and of trained models, by folder.

    d_model, num_heads: of the mixers. tokens: of the sequence that weights are looked at on.
    recall_steps: of the training of a small model for recall; 0 leaves it out.
    """
    if not names:
        raise ValueError("name at least one mixer or folder of a trained model: maclaurin lab card softmax 2mamba")
    at_least_one("d_model", d_model)
    at_least(8, "tokens", tokens)
    recall_steps = (300 if quick else 1200) if recall_steps is None else recall_steps
    status = Status()
    properties: dict[str, Callable[[Subject], str]] = {
        **{f"state at {length:,} tokens, float32": partial(_state, length=length) for length in STATE_AT},
        f"block rank of the weights, of {tokens // 2}": lambda one: str(statistics.median_low(one.ranks())),
        "needle among n tokens": lambda one: _separation(one, 200 if quick else 1000, seed),
        "queries with the same output": lambda one: _injectivity(one, seed),
        f"weight on the last {NEAR} tokens": _locality,
        f"{100 * SHARE:g} % of the weight lies within": _reach,
        f"recall of {PAIRS} pairs": lambda one: _recall(one, recall_steps, seed, status),
        **{f"multiply-adds per token, {phase} at {COST_AT[-1]:,}": partial(_cost, phase=phase) for phase in PHASES},
    }
    with status:
        subjects = [_subject(name, d_model, num_heads, tokens, seed) for name in names]
        rows = [[text, *(_answer(text, of, one, status) for one in subjects)] for text, of in properties.items()]
    settings = {"mechanisms": list(names), "d_model": d_model, "num_heads": num_heads, "tokens": tokens}
    settings |= {"recall_steps": recall_steps, "seed": seed}
    claimed = [_rank_claim(one) for one in subjects]
    part = Part(claimed, [Grid("", ("", *names), rows)], [_distance_plot(subjects, tokens)])
    return Result.of("card", "Report card", settings, [part], NOTES)


def _subject(name: str, d_model: int, num_heads: int, tokens: int, seed: int) -> Subject:
    if name in available_mixers():
        mixer = drawn(name, d_model, num_heads, seed)
        return _looked_at(name, [name], {mixer: normal(1, tokens, d_model, generator=generator(seed))}, None)
    if not Path(name).is_dir():
        raise ValueError(f"{name!r} is neither a mixer (`maclaurin mixers`) nor the folder of a trained model")
    traced = checkpoint(name, None, tokens=tokens, texts=1)
    kinds = list(dict.fromkeys(traced.kinds))
    if isinstance(traced, OfTransformers):
        layers = traced.layers()
        mixers = [_counted(layer, traced.model.config.hidden_size) for layer in layers]
        return Subject(name, kinds, mixers, [layer.weights()[0] for layer in layers], [], traced)
    inputs = {copy.deepcopy(mixer).double(): x.double() for mixer, x in traced.inputs().items()}
    return _looked_at(name, kinds, inputs, traced)


def _counted(layer: Layer, d_model: int) -> Mixer:
    """The mixer of this project whose state and cost are those of such a layer."""
    window = getattr(layer.mechanism, "window", None)
    (H, K), (G, V) = layer.q.shape[2:], layer.v.shape[2:]
    sizes = {"num_kv_heads": G, "key_dim": K, "head_dim": V} | ({} if window is None else {"window": window})
    return build_mixer("softmax" if window is None else "sliding-window", d_model, H, **sizes, rotary="none")


@torch.no_grad()
def _looked_at(name: str, kinds: Sequence[str], layers: dict[Mixer, Tensor], trained: Traced | None) -> Subject:
    found, states = [], []
    for mixer, x in layers.items():
        if isinstance(mixer, Attention) and mixer.kernel is None:  # no finite recurrence: its weights as they are
            found.append(weights.of_mixer(mixer, mixer.project(x))[0])
        else:
            try:
                system = to_dsf(mixer, x)
            except UnknownSystemError:
                continue
            found.append(system.weights())
            states.append(system.states)
    return Subject(name, kinds, list(layers), found, states, trained)


def _answer(text: str, of: Callable[[Subject], str], subject: Subject, status: Status) -> str:
    status(f"card of {subject.name}: {text}")
    try:
        return of(subject)
    except ValueError as error:
        return f"– ({error})"


def _state(subject: Subject, length: int) -> str:
    """In the dtype that models have: what the lab computes with is float64."""
    return size_text(sum(mixer.state_nbytes(length, torch.float32) for mixer in subject.layers))


def _separation(subject: Subject, networks: int, seed: int) -> str:
    report = probe(mechanism(subject.mixer), Separation(), networks=networks, seed=seed)
    if report.verdict == "does not apply" or report.growth is None:
        return f"{report.verdict}: {'; '.join(report.notes)}" if report.notes else report.verdict
    return f"{report.verdict}, threshold grows as n^{max(report.growth, 0):.2f}"


def _injectivity(subject: Subject, seed: int) -> str:
    if subject.trained is not None:
        share = confusion(subject.trained).shares[TOLERANCES.index(TOLERANCE)]
        return f"{100 * share:.2g} % of the pairs in the text"
    if (changes := told_apart(subject.mixer, seed=seed)) is None:
        raise ValueError("it has no queries")
    alike = [pair for pair, change in changes.items() if change < SAME]
    return "; ".join(alike) if alike else "none found"


def _locality(subject: Subject) -> str:
    shares = subject.shares()
    queries = range(3 * len(shares) // 4, len(shares))
    chance = statistics.fmean(NEAR / (t + 1) for t in queries)
    return f"{float(shares[:NEAR].sum()):.3f} (uniform: {chance:.3f})"


def _reach(subject: Subject) -> str:
    shares = subject.shares()
    within = int((shares.cumsum(0) < SHARE).sum()) + 1
    return f"{within} of {len(shares)} tokens"


def _recall(subject: Subject, steps: int, seed: int, status: Status) -> str:
    if subject.trained is not None:
        raise ValueError("it is trained for something else: `maclaurin suite needle --model FOLDER`")
    if steps == 0:
        raise ValueError("left out")
    hard = mqar(4 * PAIRS, PAIRS, vocab_size=64)
    setting = Setting(width=64, heads=4, layers=2, steps=steps, batch=32, stop_at=0.99, examples=200)
    row = rows_of(subject.mixer)[subject.mixer]
    cell = Cell("card", subject.mixer, row, setting, (*mqar(16, 4, vocab_size=64), *hard), hard, 1e-2, seed)
    title = f"card of {subject.name}: a small model learns to recall {PAIRS} pairs"
    outcome = learn(cell, lambda step, loss: status(f"{title}, step {step:,} of at most {steps:,}, loss {loss:.3f}"))
    return f"{outcome.scores[0].accuracy:.3f} after {outcome.steps} steps (chance {1 / PAIRS:.3f})"


def _cost(subject: Subject, phase: str) -> str:
    """Of all its layers' mixers."""
    one = subject.layers[0]
    counted = explanation(subject.mixer, one.d_model, one.num_heads, COST_AT)["multiply_adds"][str(COST_AT[-1])][phase]
    return f"{len(subject.layers) * counted:,}"


def _rank_claim(subject: Subject) -> claims.Claim:
    text = f"{subject.name}: the rank of what later tokens know of earlier ones is at most the number of states"
    if not subject.known or len(subject.states) < len(subject.weights):
        why = "it keeps all tokens" if subject.known else "its weights are not written out"
        return claims.not_applicable("rank", text, why)
    shares = [rank / states for rank, states in zip(subject.ranks(), subject.states, strict=True)]
    return claims.at_most("rank", text, max(shares), 1)


def _distance_plot(subjects: Sequence[Subject], tokens: int) -> Plot:
    distances = [float(d) for d in range(1, tokens + 1)]
    left = {one.name: 1 - one.shares().cumsum(0) for one in subjects if one.known}
    curves = [Curve(name, distances, shares.clamp(min=0).tolist()) for name, shares in left.items()]
    return Plot("distance", "Share of the weight farther back than this.", "tokens back", "share of the weight", curves)
