"""Softmax as a sum of recurrent networks, one an order of the exponential's series (arXiv 2507.23632)."""

from maclaurin.lab.experiments.series.experiment import series
from maclaurin.lab.experiments.series.probe import LayerOrders, layer_orders

__all__ = ["LayerOrders", "layer_orders", "series"]
