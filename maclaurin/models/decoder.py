"""The decoder language model: Llama's layout (pre-norm, SwiGLU, no biases) with a mixer of any kind in each layer.

It differs from the model of the thesis (arXiv 2507.23632 and 2602.17363) only in positions and masks, which are exact here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from maclaurin.mixers import MixerState, build_mixer
from maclaurin.mixers.base import RMSNorm
from maclaurin.models.cache import StateCache
from maclaurin.models.checked import load_checked
from maclaurin.models.config import MaclaurinConfig

LOSS_CHUNK = 2048  # tokens whose logits exist at a time while the loss is computed


class SwiGLU(nn.Module):
    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class MaclaurinLayer(GradientCheckpointingLayer):
    def __init__(self, config: MaclaurinConfig, mixer: str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mixer = build_mixer(mixer, config.hidden_size, config.num_attention_heads, **config.options_of(mixer))
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(
        self,
        hidden: Tensor,
        state: MixerState | None,
        return_state: bool,
        attention_mask: Tensor | None,
        cu_seqlens: Tensor | Sequence[int] | None,
        form: str,
    ) -> tuple[Tensor, MixerState | None]:
        mixed, new_state = self.mixer(
            self.input_layernorm(hidden),
            state,
            return_state=return_state,
            form=form,
            attention_mask=attention_mask,
            cu_seqlens=cu_seqlens,
        )
        hidden = hidden + mixed
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), new_state


class MaclaurinPreTrainedModel(PreTrainedModel):
    config: MaclaurinConfig
    config_class = MaclaurinConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("MaclaurinLayer",)
    _is_stateful = True  # assisted decoding would have to remove tokens from a state

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Layers initialise themselves when they are built; `llama` draws all linear weights alike."""
        is_head = module is getattr(self, "lm_head", None)
        if isinstance(module, nn.Embedding) or (isinstance(module, nn.Linear) and (is_head or self.config.init == "llama")):
            nn.init.normal_(module.weight, std=self.config.initializer_range)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in transformers, but a checkpoint that does not fit is refused and nothing is left half-initialised."""
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # one sentence below instead of its table
        try:
            kwargs["ignore_mismatched_sizes"] = True  # they are in the report, which is checked below
            model, info = load_checked(cls, super().from_pretrained, *args, **kwargs)
        finally:
            logging.set_verbosity(verbosity)
        for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            if found := sorted(map(str, info.get(problem) or ())):
                kind = problem.replace("_", " ")
                raise ValueError(f"the checkpoint does not fit this configuration: {len(found)} {kind}, such as {found[0]}")
        return (model, info) if output_loading_info else model


class MaclaurinModel(MaclaurinPreTrainedModel):
    """Token ids (batch, time) -> hidden states (batch, time, hidden_size)."""

    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(MaclaurinLayer(config, mixer) for mixer in config.layer_mixers())
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        form: str = "auto",
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        T = hidden.shape[1]
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = StateCache(len(self.layers))
        if past_key_values is not None and not isinstance(past_key_values, StateCache):
            raise TypeError(f"past_key_values must be a StateCache, got {type(past_key_values).__name__}")
        if attention_mask is not None:
            # generate() passes the mask of all tokens so far; the state has already seen the earlier ones
            attention_mask = attention_mask[:, -T:]
            if bool(attention_mask.all()):
                attention_mask = None
        every_hidden = [hidden]
        for index, layer in enumerate(self.layers):
            cached = None if past_key_values is None else past_key_values.layers[index]
            state = None if cached is None else cached.state
            hidden, state = layer(hidden, state, cached is not None, attention_mask, cu_seqlens, form)
            if cached is not None:
                cached.advance(state, T)
            every_hidden.append(hidden)
        hidden = self.norm(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=past_key_values,
            hidden_states=(*every_hidden[:-1], hidden) if output_hidden_states else None,
        )

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value


class MaclaurinForCausalLM(MaclaurinPreTrainedModel, GenerationMixin):
    """The language model. With labels it returns the loss, whose logits exist only for LOSS_CHUNK tokens at a time."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__(config)
        self.model = MaclaurinModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """labels (batch, time) are the input ids, shifted here; −100 is ignored, and so is the first token of a document.

        logits_to_keep: how many of the last tokens get logits; 0 or None for all. With labels no logits are returned
        unless it is given.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cu_seqlens=cu_seqlens,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            loss = self._loss(hidden, labels, attention_mask, cu_seqlens, num_items_in_batch)
        logits = None
        if labels is None or logits_to_keep is not None:
            kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-(logits_to_keep or 0), None)
            logits = self.lm_head(hidden[:, kept])
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states
        )

    def _loss(
        self,
        hidden: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None,
        cu_seqlens: Tensor | Sequence[int] | None,
        num_items: Tensor | int | None,
    ) -> Tensor:
        """Token-weighted cross entropy of every next token, in float32, a chunk of tokens at a time."""
        targets = labels.clone()
        if attention_mask is not None:
            targets = targets.masked_fill(attention_mask == 0, -100)
        if cu_seqlens is not None:
            starts = torch.as_tensor(cu_seqlens, device=labels.device)[:-1].long()
            targets[:, starts[starts < labels.shape[1]]] = -100
        tokens, targets = hidden[:, :-1].flatten(0, 1), targets[:, 1:].flatten()
        total = tokens.new_zeros((), dtype=torch.float32)
        for some_tokens, some_targets in zip(tokens.split(LOSS_CHUNK), targets.split(LOSS_CHUNK), strict=True):
            total = total + checkpoint(self._summed_loss, some_tokens, some_targets, use_reentrant=False)
        if num_items is None:
            num_items = (targets != -100).sum().clamp(min=1)
        return total / num_items

    def _summed_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.lm_head(tokens).float(), targets, ignore_index=-100, reduction="sum")

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any) -> None:
        """generate() makes its cache here: a KV cache could not hold the states of mixers."""
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation {generation_config.cache_implementation!r} is for a KV cache; "
                "leave it out: states are carried by a StateCache"
            )
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = StateCache(self.config.num_hidden_layers)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value


AutoConfig.register("maclaurin", MaclaurinConfig)
AutoModel.register(MaclaurinConfig, MaclaurinModel)
AutoModelForCausalLM.register(MaclaurinConfig, MaclaurinForCausalLM)
# pipelines and evaluation tools look up by name what a model is for
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["maclaurin"] = MaclaurinForCausalLM.__name__
