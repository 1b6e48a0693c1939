"""Every mixer as a linear time-varying system (DSF): Λ, B, C, D, its kernel, its eigenvalues and its rank."""

from maclaurin.lab.experiments.dynamics.convert import form_error, to_dsf
from maclaurin.lab.experiments.dynamics.experiment import dynamics
from maclaurin.lab.experiments.dynamics.system import System

__all__ = ["System", "dynamics", "form_error", "to_dsf"]
