"""Uninitialised memory of the package, poisoned: a read of what nobody wrote shows as NaN, not as what is usually right."""

import sys

import torch

ALLOCATORS = ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty"))


def poisoned(allocate):
    def wrapper(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("maclaurin") and tensor.is_floating_point():
            tensor.fill_(float("nan"))
        return tensor

    return wrapper


def install(replace=setattr):
    for owner, name in ALLOCATORS:
        replace(owner, name, poisoned(getattr(owner, name)))
