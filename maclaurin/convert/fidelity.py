"""How near each layer's attention is to the source's, when it is shown what the source's layer was shown.

    error    Σ|y − y*|² / Σ|y* − mean y*|² of what the layer gives
    kl       Σ_s w*_ts log(w*_ts / w_ts) of the weights w* of softmax and w of the student, mean over heads and tokens

Weights below 1e-9 count as 1e-9. A layer that had no softmax to begin with has no such divergence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from maclaurin.convert.maclaurin_student import is_softmax
from maclaurin.convert.teacher_student import Call, Shown, mixing_layers
from maclaurin.convert.text import Batch
from maclaurin.convert.transfer import layer_errors
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.weights import of_mixer
from maclaurin.models.linearised.attention import watching
from maclaurin.models.linearised.students import Softmax

SMALLEST_WEIGHT = 1e-9


@torch.no_grad()
def fidelity(teacher: PreTrainedModel, student: nn.Module, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """A row a layer."""
    shown = Shown.of(teacher)
    errors = torch.stack([torch.stack(layer_errors(shown, student, batch)) for batch in batches]).mean(0)
    rows: list[dict[str, Any]] = [{"layer": index, "error": error} for index, error in enumerate(errors.tolist())]
    pairs = list(zip(mixing_layers(shown.model), mixing_layers(student), strict=True))
    found = [[_divergence(call, *pair) for call, pair in zip(shown.run(batch), pairs, strict=True)] for batch in batches]
    for row, kls in zip(rows, zip(*found, strict=True), strict=True):
        if known := [kl for kl in kls if kl is not None]:
            row["kl"] = torch.stack(known).mean().item()
    return rows


def _divergence(call: Call, source: nn.Module, layer: nn.Module) -> Tensor | None:
    """KL(softmax ‖ student) of one layer, mean over heads and real tokens."""
    if isinstance(source, ProjectedMixer) and isinstance(layer, ProjectedMixer):
        return torch.cat(list(_own_divergences(call, source, layer))).mean() if is_softmax(source) else None
    return _host_divergence(call, layer) if hasattr(layer, "student") else None


def _host_divergence(call: Call, layer: nn.Module) -> Tensor:
    """In a model of transformers. With an identity as values, outputs are weights."""
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
    """In a model of this project, document by document: none sees another."""
    x = call.args[0]
    bounds = call.kwargs["cu_seqlens"].tolist()
    for start, end in itertools.pairwise(bounds):
        document = x[:, start:end]
        wanted, got = (of_mixer(mixer, mixer.project(document)) for mixer in (source, layer))
        yield _kl(wanted, got).mean((0, 1))


def _kl(wanted: Tensor, got: Tensor) -> Tensor:
    return (wanted * (wanted.clamp(min=SMALLEST_WEIGHT) / got.clamp(min=SMALLEST_WEIGHT)).log()).sum(-1)
