"""What every mixer is: a module that maps (B, T, d_model) to the same shape, with its state passed in and out."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.machine.bfloat16 import check_bf16
from maclaurin.mixers import handover
from maclaurin.ops import checks
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.conv import short_conv
from maclaurin.ops.fields import WHOLE, Axes
from maclaurin.ops.packed import Packed
from maclaurin.ops.ragged import Inputs, over_documents
from maclaurin.ops.states import ConvState, State

VERY_LONG = 2**20  # tokens: a state that grows with length is VERY_LONG times larger at VERY_LONG**2 tokens
INITS = ("torch", "llama")


@dataclass(frozen=True)
class MixerState(State):
    """What a mixer carries from one call to the next. Parts that it does not have are None.

    position: how many tokens came before. gate_sum: the running divisor of a cumulative gate. rotation: how far selective
    rotary angles have turned. kind: the mixer that the state belongs to. Different mechanisms may have states of the same
    shapes, such as softmax and gated softmax, and only the kind tells them apart; None fits any.
    """

    attention: State
    conv: ConvState | None = None
    position: Annotated[Tensor | None, Axes("B", WHOLE)] = None
    gate_sum: Annotated[Tensor | None, Axes("B H")] = None
    rotation: State | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Call:
    """How a mixer is called, apart from x and the state. lengths: how many tokens of a right-padded batch are real.

    transitions: where it is a list, the state is to be joined with that of earlier tokens. It keeps no tokens then that
    could be folded into it, and what these tokens do to an earlier state is put into the list (`ops/transitions.py`).
    """

    form: str = "auto"
    lengths: Tensor | None = None
    return_state: bool = True
    transitions: list[Tensor] | None = None

    def with_state(self, state: State | None) -> dict[str, Any]:
        """What every causal op takes beside its tensors."""
        return {"state": state, "form": self.form, "lengths": self.lengths, "return_state": self.return_state}

    def part(self, start: int, tokens: int, *, last: bool) -> Call:
        """The same for some of the tokens. All but the last part hand a state on."""
        lengths = None if self.lengths is None else (self.lengths - start).clamp(0, tokens)
        return Call(self.form, lengths, self.return_state or not last, self.transitions)


AT_ONCE = Call()  # a whole batch without padding, in the fastest form


@dataclass(frozen=True)
class Zeros:
    """Makes the zeros of an initial state: zeros(2, 3) is a tensor (batch, 2, 3)."""

    batch: int
    device: torch.device | str
    dtype: torch.dtype  # of the inputs

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(self.batch, *shape, device=self.device, dtype=dtype or self.dtype)

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sums, states and decays."""
        return torch.promote_types(self.dtype, torch.float32)


class Mixer(nn.Module, ABC):
    """Base class. A mixer keeps no state of its own: one module may serve any number of sequences at a time."""

    bidirectional: ClassVar[bool] = False  # whether causal=False is possible
    has_block: ClassVar[bool] = False  # whether what surrounds its mechanism can be chosen, see `blocks.py`
    own_gate: ClassVar[bool] = False  # whether its mechanism has an output gate of its own

    def __init__(self, d_model: int, num_heads: int, *, causal: bool = True) -> None:
        super().__init__()
        at_least_one("d_model", d_model)
        at_least_one("num_heads", num_heads)
        self.d_model = d_model
        self.num_heads = num_heads
        self.causal = causal
        self.kind = type(self).__name__  # or the name under which it was built
        self.built_with: dict[str, Any] | None = None  # its options, where it was built by name
        self.part = (0, 1)  # which of how many equal parts of the key-value heads it has (`maclaurin.distributed.heads`)
        self._seal = object()  # marks the states that it has made itself
        self._shapes_kept: MixerState | None = None

    def forward(
        self,
        x: Tensor,
        state: MixerState | None = None,
        *,
        return_state: bool = True,
        form: str = "auto",
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, MixerState | None]:
        """x (B, T, d_model) -> y of the same shape, and the state after the last token of every sequence.

        form: "parallel", "chunked", "recurrent", or "auto" for the fastest; all give the same numbers.
        attention_mask (B, T): 1 at tokens, 0 at padding, on the left or on the right. cu_seqlens (N+1,): the bounds of N
        documents packed in one sequence; the state then holds N sequences. lengths (B,): tokens before the padding on the
        right, of sequences that are to stay in one batch. Padding and other documents have no influence.
        A mixer built with causal=False sees whole sequences: it takes no state and returns None in its place.
        Where sequences are cut (`handover.py`), the first document goes on from the slice before.
        """
        checks.tensor("x", x, f"batch, time, {self.d_model}")
        if x.shape[2] != self.d_model or x.shape[1] == 0:
            raise ValueError(f"x must have shape (batch, time >= 1, {self.d_model}), got {checks.shape(x)}")
        one_of("form", form, checks.FORMS)
        cut = None if state is not None or not self.causal else handover.current()
        documents = None if cut is None or cu_seqlens is None else len(cu_seqlens) - 1
        if cut is not None:
            x, state, cu_seqlens = cut.receive(self, x, cu_seqlens)
            if state is not None and documents is not None:
                state = self._with_new(state, documents - 1)
        if state is not None and getattr(state, "made_by", None) is not self._seal:
            self._check_state(state, x)
        return_state = return_state and self.causal
        if x.dtype == torch.bfloat16 and x.device.type == "cpu":
            check_bf16()

        def dense(inputs: Inputs, state: MixerState | None, lengths: Tensor | None) -> tuple[Tensor, MixerState | None]:
            (x,) = inputs
            assert x is not None
            return self.mix(x, state, Call(form, lengths, return_state or cut is not None))

        y, after = over_documents(dense, (x,), state, attention_mask=attention_mask, cu_seqlens=cu_seqlens, lengths=lengths)
        if after is not None:
            self.trust(after)
        if cut is not None:
            assert after is not None
            y = cut.send(self, y, after if documents is None else after.select([documents - 1]))
        return y, after if return_state else None

    def trust(self, state: MixerState) -> None:
        """It made this state itself, or need not look at it for another reason."""
        object.__setattr__(state, "made_by", self._seal)  # not a field: a state derived from this one is checked again

    def fold(self, x: Tensor, state: MixerState | None = None) -> tuple[MixerState, Tensor]:
        """The state of x (B, T, d_model) alone, and the transition that joins it with the state of earlier tokens:

            own, transition = mixer.fold(x)
            replace(own, attention=own.attention.after(earlier.attention, transition))

        state: the convolution and the position behind the earlier tokens, which the keys of these depend on; what it has for
        the attention must be that of no token.
        """
        if not self.folds:
            raise ValueError(f"slices of the mixer {self.kind!r} cannot be folded apart and joined: hand its state on")
        transitions: list[Tensor] = []
        _, after = self.mix(x, state, Call(transitions=transitions))
        assert after is not None
        return after, transitions[-1]

    @property
    def folds(self) -> bool:
        """Whether states of slices that were computed apart can be joined."""
        return False

    @property
    def packs(self) -> bool:
        """Whether only its mechanism and its convolution look back, so that they may be given `Packed` states."""
        return False

    def _with_new(self, state: MixerState, count: int) -> MixerState:
        """The state of a document that goes on, and those of so many that begin behind it."""
        if not count:
            return state
        tensor = next(iter(state.tensors().values()))
        return MixerState.cat([state, self.init_state(count, device=tensor.device)])

    @abstractmethod
    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        """The mechanism on a dense batch, right-padded where `call.lengths` is given."""

    @abstractmethod
    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        """A state of zeros with the shapes that the state has after so many tokens. For 0 tokens it is the initial state."""

    def init_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> MixerState:
        """The state before the first token: the same as passing None."""
        parameter = next(self.parameters())
        return self.state_of(0, Zeros(batch_size, device or parameter.device, dtype or parameter.dtype))

    @classmethod
    def layer_type(cls, options: dict[str, Any]) -> str:
        """With these options, what transformers calls such a layer."""
        return "linear_attention"

    @property
    def has_states(self) -> bool:
        return self.causal

    def on_zeros(self, tokens: int, state: MixerState | None, return_state: bool) -> tuple[Tensor, MixerState | None]:
        """One call on a sequence of so many zeros: to see what it would do (`explain.py`)."""
        parameter = next(self.parameters())
        x = torch.zeros(1, tokens, self.d_model, dtype=parameter.dtype, device=parameter.device)
        return self(x, state, return_state=return_state)  # type: ignore[no-any-return]

    def state_nbytes(self, length: int, dtype: torch.dtype | None = None) -> int:
        """How many bytes the state of one sequence of `length` tokens takes, in this dtype or in that of the parameters."""
        return self.state_of(length, Zeros(1, "meta", dtype or next(self.parameters()).dtype)).nbytes

    @property
    def whole_because(self) -> str | None:
        """Why its heads cannot be split over processes; None where they can."""
        return "it has no heads that are independent of each other"

    @property
    def fused(self) -> dict[str, list[int]]:
        """Of layers whose output is several parts side by side, how many channels each part has."""
        return {}

    def options_of_part(self, parts: int) -> dict[str, Any]:
        """The options with which 1/parts of its heads are built, beside those that it was built with itself."""
        return {}

    def one_part(self, parts: int) -> Mixer:
        """A mixer on the meta device like this one, with one of so many equal parts of the heads."""
        if self.whole_because is not None or self.built_with is None:
            why = self.whole_because or "it was not built by `build_mixer`"
            raise ValueError(f"the heads of the mixer {self.kind!r} cannot be split: {why}")
        if self.num_heads % parts:
            raise ValueError(
                f"{self.num_heads} heads of the mixer {self.kind!r} cannot be shared equally by {parts} processes"
            )
        with torch.device("meta"):
            return type(self)(self.d_model, self.num_heads // parts, **{**self.built_with, **self.options_of_part(parts)})

    @property
    def finite_state(self) -> bool:
        """Whether the state stops growing, so that training takes linear time and decoding needs constant memory."""
        return self.state_nbytes(VERY_LONG**2) <= VERY_LONG // 2 * self.state_nbytes(VERY_LONG)

    def _check_state(self, state: MixerState, x: Tensor) -> None:
        """A state that is passed in must be one of this mixer: its kind, its sizes, its parts."""
        if not self.causal:
            raise ValueError("state must be None: a mixer built with causal=False sees whole sequences only")
        checks.initial_state(state, MixerState)
        own = self.shapes()
        if isinstance(state.kind, str) and state.kind != self.kind:
            raise ValueError(f"state must come from a mixer of the kind {self.kind!r}, got one of {state.kind!r:.80}")
        if (device := state.check(like=own).device) != x.device:
            raise ValueError(f"state must be on the device of x ({x.device}), got {device}")

    def shapes(self) -> MixerState:
        """A state on the meta device to compare shapes with. Cached: making it takes longer than checking a state."""
        if self._shapes_kept is None:
            self._shapes_kept = self.init_state(1, device="meta")
        return self._shapes_kept


def shared_out(name: str, count: int, parts: int) -> int:
    """How many of `count` each of `parts` processes has; a single one is there on all of them."""
    if count != 1 and count % parts:
        raise ValueError(f"{name} must be 1 or a multiple of the {parts} processes that share the heads, got {count}")
    return max(1, count // parts)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32 at least.

    zero_centered: it multiplies by 1 + w in place of w, as Gemma's, whose weights keep their digits in bfloat16.
    """

    def __init__(self, dim: int, eps: float | None = None, *, zero_centered: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim) if zero_centered else torch.ones(dim))
        self.eps = torch.finfo(torch.float32).eps if eps is None else eps
        self.zero_centered = zero_centered

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = self.weight.to(dtype) + 1 if self.zero_centered else self.weight.to(dtype)
        return F.rms_norm(x.to(dtype), self.weight.shape, weight, self.eps).to(x.dtype)


class WideLinear(nn.Linear):
    """A linear layer in the dtype of its input, whatever that of its weights, also under autocast: its outputs are summed
    over time, or are exponents."""

    def forward(self, x: Tensor) -> Tensor:
        return _in_dtype_of_input(x, self.weight, self.bias)


@without_autocast
def _in_dtype_of_input(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dtype == x.dtype:
        return F.linear(x, weight, bias)
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class ShortConv(nn.Conv1d):
    """The parameters of a causal depthwise convolution, named and initialised as PyTorch does; `ops.short_conv` runs it."""

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)

    def run(
        self, x: Tensor, state: ConvState | Packed | None = None, call: Call = AT_ONCE, activation: str = "identity"
    ) -> tuple[Tensor, Any]:
        if isinstance(state, Packed):
            return state.over(lambda x, one: self.run(x, one, call, activation), x)
        return short_conv(x, self.weight.squeeze(1), self.bias, activation=activation, **call.with_state(state))

    def state_of(self, zeros: Zeros) -> ConvState:
        return ConvState(zeros(self.kernel_size[0] - 1, self.in_channels))


def checked_init(init: str) -> str:
    """The name of an initialisation. "torch" was called "thesis" before; files that say so keep loading."""
    if init == "thesis":
        warnings.warn("init='thesis' is called init='torch' now; 0.2 drops the old name", FutureWarning, stacklevel=2)
        return "torch"
    one_of("init", init, INITS)
    return init


def initialise(mixer: nn.Module, init: str) -> None:
    """`torch` leaves PyTorch's defaults, U(±1/√fan_in); `llama` draws linear weights from N(0, 0.02), biases zero."""
    if checked_init(init) == "llama":
        for module in mixer.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def initial_dt_bias(heads: int, shortest: float = 1e-3, longest: float = 0.1, floor: float = 1e-4) -> Tensor:
    """Mamba's time step bias: softplus of it is log-uniform between `shortest` and `longest`."""
    span = torch.empty(heads, **start_of_parameters()).uniform_(math.log(shortest), math.log(longest))
    dt = span.exp().clamp(min=floor)
    return (dt + (-torch.expm1(-dt)).log()).to(torch.get_default_dtype())


def start_of_parameters() -> dict[str, Any]:
    """Where initial values are computed: on torch's default device, in float32, to be rounded to the parameter's dtype."""
    return {"dtype": torch.float32, "device": torch.get_default_device()}


def advanced(state: MixerState | None, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The positions (B, T) of new tokens, and the position (B,) after them."""
    B, T = x.shape[:2]
    before = None if state is None else state.position
    start = torch.zeros(B, dtype=torch.long, device=x.device) if before is None else before
    positions = start[:, None] if T == 1 else start[:, None] + torch.arange(T, dtype=torch.long, device=x.device)
    return positions, start + (T if lengths is None else lengths)
