"""Sequences cut in time: over the processes of a group, or one slice after the other in one process."""

from maclaurin.distributed.chain import sequence_parallel
from maclaurin.distributed.chunks import backward_in_chunks, loss_in_chunks
from maclaurin.distributed.gradients import clip_gradients, sum_gradients
from maclaurin.distributed.slices import slice_of

__all__ = ["backward_in_chunks", "clip_gradients", "loss_in_chunks", "sequence_parallel", "slice_of", "sum_gradients"]
