"""What `bench.json` holds: the parts that were measured, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from maclaurin.bench.attention import AttentionRow
from maclaurin.bench.decode import DecodeRow
from maclaurin.bench.forms import FormRow
from maclaurin.bench.gpu import GpuRow
from maclaurin.bench.limits import Limits
from maclaurin.bench.memory import Memory
from maclaurin.bench.mixers import MixerRow
from maclaurin.bench.model import ModelRow
from maclaurin.bench.peers import PeerRow
from maclaurin.bench.precision import PrecisionRow
from maclaurin.bench.roofline import RooflineRow
from maclaurin.bench.scale import ScaleRow
from maclaurin.bench.sequences import SequenceRow
from maclaurin.bench.serve import ServeRow
from maclaurin.bench.training import TrainingRow
from maclaurin.bench.transformers import TransformersRow
from maclaurin.common.records import ABSENT, Record


@dataclass(frozen=True)
class Setting(Record):
    """native: the instructions of the kernels, None without kernels. load: of the machine before it, None on Windows."""

    torch: str
    python: str
    threads: int
    cpu: str
    native: str | None
    load: float | None


@dataclass(frozen=True)
class Results(Record):
    """A part that was not measured is None."""

    setting: Setting
    limits: Limits | None = field(default=None, metadata=ABSENT)
    attention: Sequence[AttentionRow] | None = field(default=None, metadata=ABSENT)
    forms: Sequence[FormRow] | None = field(default=None, metadata=ABSENT)
    decode: Sequence[DecodeRow] | None = field(default=None, metadata=ABSENT)
    mixers: Sequence[MixerRow] | None = field(default=None, metadata=ABSENT)
    peers: Sequence[PeerRow] | None = field(default=None, metadata=ABSENT)
    precision: Sequence[PrecisionRow] | None = field(default=None, metadata=ABSENT)
    memory: Memory | None = field(default=None, metadata=ABSENT)
    training: Sequence[TrainingRow] | None = field(default=None, metadata=ABSENT)
    model: Sequence[ModelRow] | None = field(default=None, metadata=ABSENT)
    transformers: Sequence[TransformersRow] | None = field(default=None, metadata=ABSENT)
    roofline: Sequence[RooflineRow] | None = field(default=None, metadata=ABSENT)
    sequences: Sequence[SequenceRow] | None = field(default=None, metadata=ABSENT)
    scale: Sequence[ScaleRow] | None = field(default=None, metadata=ABSENT)
    serve: Sequence[ServeRow] | None = field(default=None, metadata=ABSENT)
    gpu: Sequence[GpuRow] | None = field(default=None, metadata=ABSENT)
