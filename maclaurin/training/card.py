"""The model card of a run: what the model is, what it was trained on, how good it is, and how to load it."""

from __future__ import annotations

from pathlib import Path

from maclaurin.mixers.registry import mixer_entry
from maclaurin.models import MaclaurinForCausalLM
from maclaurin.training.recipe import Recipe

FILE = "README.md"
# the fields that the hub reads come first
CARD = """---
library_name: transformers
pipeline_tag: text-generation
license: unknown
tags: [maclaurin, {tags}]
{datasets}---

# A language model with {mixers}

| | |
|---|---|
| Mixer | {mixers}{options} |
| Size | {size}: {layers} layers, width {width}, {heads} heads, vocabulary {vocabulary:,} |
| Parameters | {parameters:,} |
| Data | {corpus}{bound}, tokenizer {tokenizer}, sequences of {length:,} tokens, {steps:,} steps of {per_step:,} tokens |
| Validation loss | {loss}{validation} |
| Licence | of the code, Apache-2.0; of these weights, what their owner writes here and above |

recipe.json has all settings, versions.json what they ran on, log.jsonl the curves.

## How to load it

With the package `maclaurin` installed, in any process:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
```

## Citation

{citations}
"""


def model_card(recipe: Recipe, model: MaclaurinForCausalLM, loss: float | None) -> str:
    """In Markdown. loss: on the validation sequences, in nats per token."""
    config = model.config
    mixers = list(dict.fromkeys(config.layer_mixers()))
    corpus = _shared_name(recipe.corpus)
    return CARD.format(
        tags=", ".join(mixers),
        datasets=f"datasets: [{corpus}]\n" if "/" in corpus else "",
        mixers=", ".join(mixers),
        options=f", {config.mixer_options}" if config.mixer_options else "",
        size=recipe.size,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        vocabulary=config.vocab_size,
        parameters=model.num_parameters(),
        corpus=corpus,
        bound=f", its first {recipe.tokens:,} tokens" if recipe.tokens else "",
        validation=f", on {_shared_name(recipe.validation)}" if recipe.validation else "",
        tokenizer=Path(recipe.tokenizer).name,
        length=recipe.length,
        steps=recipe.steps,
        per_step=recipe.tokens_per_step,
        loss="not measured" if loss is None else f"{loss:.4f} nats per token",
        citations="\n".join(f"- {name}: {mixer_entry(name).citation}" for name in mixers),
    )


def _shared_name(corpus: str) -> str:
    """A card is shared: paths are nobody's business."""
    place = Path(corpus)
    return place.resolve().name if place.exists() else corpus
