"""Many sequences through one model at once: they join and leave between steps, and what they share is computed once.

engine = maclaurin.serving.Engine(model)
request = engine.submit(tokens, Sampling(max_tokens=100))
engine.run()
request.output
"""

from maclaurin.serving.engine import Engine
from maclaurin.serving.prefixes import PrefixCache
from maclaurin.serving.request import QueueFull, Request
from maclaurin.serving.sampling import Sampling

__all__ = ["Engine", "PrefixCache", "QueueFull", "Request", "Sampling"]
