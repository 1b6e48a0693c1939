"""How every causal op is called, beside its tensors, its state and what is its own: the same words for all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar

import torch
from torch import Tensor

from maclaurin.common.arguments import at_least_one
from maclaurin.ops import checks
from maclaurin.ops.backends import note, reason_for_torch
from maclaurin.ops.causality import StatefulOp, causally
from maclaurin.ops.native import library
from maclaurin.ops.ragged import DenseOp, Inputs, over_documents, over_whole_documents
from maclaurin.ops.states import State

S = TypeVar("S", bound=State)
Op = TypeVar("Op", bound=Callable[..., Any])


class CallOptions(TypedDict, total=False):
    """The keywords, for type checkers. `Options` has their meaning and their defaults."""

    return_state: bool
    form: str
    backend: str
    attention_mask: Tensor | None
    cu_seqlens: Tensor | Sequence[int] | None
    lengths: Tensor | None


class Options(NamedTuple):
    """return_state: False returns None in place of the state, and saves the work of making it.
    form: "parallel", "chunked", "recurrent", or "auto" for the fastest; all give the same numbers.
    backend: "native" (C++ on a CPU), "triton" (on a GPU), "torch" (everything), or "auto", the faster one that can.
    attention_mask (B,T), lengths (B,) or cu_seqlens (N+1,): ragged batches, see `ragged.py`.
    """

    return_state: bool = True
    form: str = "auto"
    backend: str = "auto"
    attention_mask: Tensor | None = None
    cu_seqlens: Tensor | Sequence[int] | None = None
    lengths: Tensor | None = None

    @classmethod
    def of(cls, op: Callable[..., Any], options: CallOptions) -> Options:
        """The keywords that an op was given beside its own."""
        for name in options:
            if name not in CallOptions.__annotations__:
                known = ", ".join(inspect.signature(op).parameters)
                raise TypeError(f"{op.__name__}() got an unexpected keyword argument {name!r}: it takes {known}")
        return cls(**options)

    def check(self) -> None:
        checks.form_and_backend(self.form, self.backend)

    @property
    def plain(self) -> bool:
        """Whether nothing is asked but the next tokens of a dense batch, and perhaps the state after them."""
        ragged = self.attention_mask is not None or self.cu_seqlens is not None or self.lengths is not None
        auto = self.backend == "auto" and library.default_backend in ("auto", "native")
        return auto and self.form in ("auto", "recurrent") and not ragged

    def natively(self, op: str, x: Tensor, auto: str = "chunked", fla: bool = False, in_triton: bool = False) -> bool:
        """Whether the C++ kernels run, where they have no other conditions than those of `native.refusal`.

        auto: the form that "auto" stands for. fla: whether fla-core takes the call. in_triton: whether Triton has kernels.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        reason = reason_for_torch(self.backend, x, dtype, in_triton=in_triton)
        note(op, "recurrent" if x.shape[1] == 1 else auto if self.form == "auto" else self.form, reason, x, fla=fla)
        return reason is None

    def at_once(self, time: int, chunk_size: int) -> int:
        """How many tokens are taken at a time, where that is all that the forms differ in."""
        at_least_one("chunk_size", chunk_size)
        return {"parallel": time, "recurrent": 1}.get(self.form, chunk_size)

    def over_documents(self, op: DenseOp[S], inputs: Inputs, state: S | None) -> tuple[Tensor, S | None]:
        return over_documents(op, inputs, state, **self._ragged())

    def causally(
        self, op: StatefulOp[S], inputs: Inputs, state: S | None, *, forgets: bool = False
    ) -> tuple[Tensor, S | None]:
        """The same for an op in whose fast forms a NaN could reach the past, see `causality.py`."""
        guarded = causally(op, form=self.form, return_state=self.return_state, forgets=forgets)
        return over_documents(
            guarded, inputs, state, attention_mask=self.attention_mask, cu_seqlens=self.cu_seqlens, lengths=self.lengths
        )

    def over_whole_documents(self, op: Callable[..., Tensor], inputs: Inputs, state: State | None) -> tuple[Tensor, None]:
        return over_whole_documents(op, inputs, state, self.backend, **self._ragged())

    def without_documents(self) -> CallOptions:
        """For the op inside one that has taken the documents apart."""
        return {"return_state": self.return_state, "form": self.form, "backend": self.backend}

    def _ragged(self) -> dict[str, Any]:
        return {"attention_mask": self.attention_mask, "cu_seqlens": self.cu_seqlens, "lengths": self.lengths}


def with_options(op: Op) -> Op:
    """Shows the keywords of `CallOptions` where a signature is looked up, after those of the op itself."""
    signature = inspect.signature(op)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, keyword, default=Options._field_defaults[name], annotation=annotation)
        for name, annotation in CallOptions.__annotations__.items()
    ]
    op.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    return op
