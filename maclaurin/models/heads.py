"""The decoder with a head that classifies sequences, by their last token, or tokens."""

from __future__ import annotations

from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

from maclaurin.models.decoder import MaclaurinPreTrainedModel


class MaclaurinForSequenceClassification(GenericForSequenceClassification, MaclaurinPreTrainedModel):
    """Logits (batch, labels). The last token is the last that is not config.pad_token_id, on whichever side padding is."""


class MaclaurinForTokenClassification(GenericForTokenClassification, MaclaurinPreTrainedModel):
    """Logits (batch, time, labels)."""
