"""Registration with the Auto classes of transformers."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES


def register(config: Any, classes: dict[str, Any]) -> None:
    """The configuration class under its model_type, and model classes by the name of the Auto class that finds them."""
    CONFIG_MAPPING_NAMES.pop(config.model_type, None)  # the name that startup/ put there stood for what follows
    transformers.AutoConfig.register(config.model_type, config)
    for auto, model in classes.items():
        mapping = getattr(transformers, auto)._model_mapping
        mapping.register(config, model)
        mapping._model_mapping[config.model_type] = model.__name__  # where pipelines look up what a model is for
