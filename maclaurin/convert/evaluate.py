"""Stage (c), what was lost: source and converted model on the same validation data.

encoders, vision    cosine of pooled vectors, mean and lowest tenth; Spearman correlation of the similarities of all pairs;
                    how often the likeliest class is the same, where there are classes
decoders            loss of both in nats per token; how often the likeliest next token is the same; KL
every layer         its attention, given the input of the source's layer:
                    error   Σ|y − y*|² / Σ|y* − mean y*|² of what the layer gives
                    kl      Σ_s w*_ts log(w*_ts / w_ts) of the weights w* of softmax and w of the student, mean over heads
                            and tokens

Weights below 1e-9 count as 1e-9. A layer that is not softmax in the source has no KL.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from maclaurin.convert.data import Batch
from maclaurin.convert.maclaurin_student import is_softmax
from maclaurin.convert.objectives import SLICE, before_head, layer_errors, pooled, summed_divergence
from maclaurin.convert.result import Agreement, LayerAgreement, TokenAgreement, VectorAgreement
from maclaurin.convert.sources import Source
from maclaurin.convert.teacher_student import Call, TracedTeacher, mixing_layers
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.weights import of_mixer
from maclaurin.models.linearised.attention import watching
from maclaurin.models.linearised.students import Softmax

FIDELITY_BATCHES = 4  # validation batches for the comparison layer by layer
FIDELITY_SEQUENCES = 2  # of a decoder of transformers
FIDELITY_TOKENS = 512  # of each: matrices of weights are as large as it is long, squared
FEWEST_EXAMPLES = 3  # for correlations over pairs
SMALLEST_WEIGHT = 1e-9


@torch.no_grad()
def evaluate(source: Source, teacher: PreTrainedModel, student: PreTrainedModel, batches: Sequence[Batch]) -> Agreement:
    batches = [_on(teacher, batch) for batch in batches]
    student.eval()
    sample = batches[:: max(1, len(batches) // FIDELITY_BATCHES)]
    if source.kind == "decoder":
        sample = [
            {name: value[:1, :FIDELITY_TOKENS] for name, value in batch.items()} for batch in sample[:FIDELITY_SEQUENCES]
        ]
    layers = fidelity(teacher, student, sample)
    if source.causal:
        return next_token_agreement(teacher, student, batches, layers)
    return _vectors(teacher, student, batches, layers, source.pooling())


def _on(model: PreTrainedModel, batch: Batch) -> Batch:
    return {name: value.to(model.device) for name, value in batch.items()}


def _vectors(
    teacher: PreTrainedModel,
    student: PreTrainedModel,
    batches: Sequence[Batch],
    layers: Sequence[LayerAgreement],
    pooling: str,
) -> VectorAgreement:
    both: tuple[list[Tensor], list[Tensor]] = ([], [])
    same, classified = 0, 0
    for batch in batches:
        outputs = [model(**batch, output_hidden_states=True) for model in (teacher, student)]
        for vectors, output in zip(both, outputs, strict=True):
            vectors.append(F.normalize(pooled(output, batch.get("attention_mask"), pooling).double(), dim=-1))
        if "logits" in outputs[0]:
            agreed = outputs[0].logits.argmax(-1) == outputs[1].logits.argmax(-1)
            same, classified = same + int(agreed.sum()), classified + agreed.numel()
    wanted, got = (torch.cat(vectors) for vectors in both)
    if len(wanted) < FEWEST_EXAMPLES:
        raise ValueError(f"the validation part must have at least {FEWEST_EXAMPLES} sentences or images, got {len(wanted)}")
    cosines = (wanted * got).sum(-1)
    return VectorAgreement(
        rows=len(cosines),
        layers=layers,
        cosine=cosines.mean().item(),
        lowest_tenth=cosines.quantile(0.1).item(),
        spearman=spearman(*(similarities(vectors) for vectors in (wanted, got))),
        same_class=same / classified if classified else None,
    )


@torch.no_grad()
def next_token_agreement(
    teacher: PreTrainedModel, student: PreTrainedModel, batches: Sequence[Batch], layers: Sequence[LayerAgreement] = ()
) -> TokenAgreement:
    losses: tuple[list[float], list[float]] = ([], [])
    same, tokens, kl = 0, 0, []
    student.eval()
    for batch in (_on(teacher, batch) for batch in batches):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        targets = batch["labels"][:, 1:]
        counted = targets != -100
        hidden = [before_head(model, inputs)[:, :-1].split(SLICE, dim=1) for model in (teacher, student)]
        sums = []
        for *some, target, real in zip(*hidden, targets.split(SLICE, dim=1), counted.split(SLICE, dim=1), strict=True):
            logits = [model.get_output_embeddings()(x).float() for model, x in zip((teacher, student), some, strict=True)]
            for values, own in zip(losses, logits, strict=True):
                values.append(F.cross_entropy(own[real], target[real], reduction="sum").item())
            same += int((logits[0].argmax(-1) == logits[1].argmax(-1))[real].sum())
            sums.append(summed_divergence(logits[1], logits[0]).item())
        tokens += int(counted.sum())
        kl.append(sum(sums) / targets.numel())
    return TokenAgreement(
        rows=tokens,
        layers=layers,
        teacher_loss=sum(losses[0]) / tokens,
        loss=sum(losses[1]) / tokens,
        kl=statistics.fmean(kl),
        same_token=same / tokens,
    )


def similarities(vectors: Tensor) -> Tensor:
    """Of all pairs."""
    rows, columns = torch.triu_indices(len(vectors), len(vectors), 1, device=vectors.device)
    return (vectors @ vectors.T)[rows, columns]


def spearman(a: Tensor, b: Tensor) -> float:
    """The correlation of ranks, without ties, which similarities in float64 practically never have."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()


@torch.no_grad()
def fidelity(teacher: PreTrainedModel, student: nn.Module, batches: Sequence[Batch]) -> tuple[LayerAgreement, ...]:
    """Of every layer."""
    traced = TracedTeacher.of(teacher)
    errors = torch.stack([torch.stack(layer_errors(traced, student, batch)) for batch in batches]).mean(0)
    pairs = list(zip(mixing_layers(traced.model), mixing_layers(student), strict=True))
    found = [[_divergence(call, *pair) for call, pair in zip(traced.run(batch), pairs, strict=True)] for batch in batches]
    rows = []
    for index, (error, kls) in enumerate(zip(errors.tolist(), zip(*found, strict=True), strict=True)):
        known = [kl for kl in kls if kl is not None]
        rows.append(LayerAgreement(index, error, torch.stack(known).mean().item() if known else None))
    return tuple(rows)


def _divergence(call: Call, source: nn.Module, layer: nn.Module) -> Tensor | None:
    """KL(softmax ‖ student) of one layer, mean over heads and real tokens."""
    if isinstance(source, ProjectedMixer) and isinstance(layer, ProjectedMixer):
        return torch.cat(list(_own_divergences(call, source, layer))).mean() if is_softmax(source) else None
    return _host_divergence(call, layer) if hasattr(layer, "student") else None


def _host_divergence(call: Call, layer: nn.Module) -> Tensor:
    """In a model of transformers. With an identity matrix as values, outputs are weights."""
    with watching() as seen:
        call.again(layer)
    (view,) = seen
    B, T, G = view.k.shape[:3]
    identity = torch.eye(T, dtype=view.k.dtype, device=view.k.device)[None, :, None].expand(B, T, G, T)
    softmax = Softmax(view.student.shape)
    wanted, got = (
        student(view.q, view.k, identity, view.x, attention_mask=view.attention_mask)[0]
        for student in (softmax, view.student)
    )
    kl = _kl(wanted, got)
    return (kl if view.attention_mask is None else kl[view.attention_mask.bool()]).mean()


def _own_divergences(call: Call, source: ProjectedMixer, layer: ProjectedMixer) -> Iterator[Tensor]:
    """In a model of this project, document by document."""
    x = call.args[0]
    bounds = call.kwargs["cu_seqlens"].tolist()
    for start, end in itertools.pairwise(bounds):
        document = x[:, start:end]
        wanted, got = (of_mixer(mixer, mixer.project(document)) for mixer in (source, layer))
        yield _kl(wanted, got).mean((0, 1))


def _kl(wanted: Tensor, got: Tensor) -> Tensor:
    return (wanted * (wanted.clamp(min=SMALLEST_WEIGHT) / got.clamp(min=SMALLEST_WEIGHT)).log()).sum(-1)
