"""The decoder language model: Llama's layout (pre-norm, SwiGLU) with a mixer of any kind in each layer.

It differs from the model of the thesis (arXiv 2507.23632 and 2602.17363) only in positions and masks, which are exact here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, MaxLengthCriteria, PreTrainedModel, StoppingCriteriaList
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple, logging

from maclaurin.mixers import MixerState, build_mixer
from maclaurin.mixers.base import RMSNorm
from maclaurin.mixers.hgrn2 import shared_bounds
from maclaurin.models.arguments import OF_GENERATE, refuse_unknown
from maclaurin.models.cache import StateCache
from maclaurin.models.checked import load_checked
from maclaurin.models.compiled_loss import summed_in_graph
from maclaurin.models.config import MaclaurinConfig
from maclaurin.models.documents import Bounds, document_bounds
from maclaurin.models.outputs import TrainingOutput, when_read
from maclaurin.models.tensor_styles import HEAD_PLAN, split_awaiting
from maclaurin.models.weights import check_fit, saved_classes
from maclaurin.ops.products import of_layer
from maclaurin.ops.transforms import has_numbers, numbers, recomputed

LOSS_CHUNK = 2048  # tokens whose logits exist at a time while the loss is computed


class GatedMLP(nn.Module):
    """W_down·(act(x·W_gate) ⊙ x·W_up): SwiGLU or GEGLU."""

    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__()
        self.kind = config.mlp
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate = of_layer(self.gate_proj, x)
        gate = F.silu(gate) if self.kind == "swiglu" else F.gelu(gate, approximate="tanh")
        y: Tensor = of_layer(self.down_proj, gate * of_layer(self.up_proj, x))
        return y


class ScaledEmbedding(nn.Embedding):
    """Embeddings multiplied by a constant, which a head with the same weights is not."""

    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__(config.vocab_size, config.hidden_size)
        self.scale = config.embedding_scale

    def forward(self, ids: Tensor) -> Tensor:
        embedded = super().forward(ids)
        return embedded if self.scale == 1 else embedded * self.scale


class CappedHead(nn.Linear):
    """A language model's head whose logits z are c·tanh(z/c): none is larger than c."""

    def __init__(self, config: MaclaurinConfig, cap: float) -> None:
        super().__init__(config.hidden_size, config.vocab_size, bias=False)
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return (torch.tanh(wide / self.cap) * self.cap).to(logits.dtype)


def _norm(config: MaclaurinConfig) -> RMSNorm:
    return RMSNorm(config.hidden_size, config.rms_norm_eps, zero_centered=config.zero_centered_norms)


class MaclaurinLayer(GradientCheckpointingLayer):
    def __init__(self, config: MaclaurinConfig, mixer: str) -> None:
        super().__init__()
        self.input_layernorm = _norm(config)
        self.mixer = build_mixer(mixer, config.hidden_size, config.num_attention_heads, **config.options_of(mixer))
        has_mlp = config.mlp != "none"
        self.post_attention_layernorm = _norm(config) if has_mlp else None
        self.mlp = GatedMLP(config) if has_mlp else None

    def forward(
        self,
        hidden: Tensor,
        state: MixerState | None,
        return_state: bool,
        attention_mask: Tensor | None,
        cu_seqlens: Bounds | None,
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
        if self.mlp is None or self.post_attention_layernorm is None:
            return hidden, new_state
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
        is_head = module in (getattr(self, "lm_head", None), getattr(self, "score", None))
        if isinstance(module, nn.Embedding) or (isinstance(module, nn.Linear) and (is_head or self.config.init == "llama")):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if is_head and isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """As in transformers, but weights that do not fit are refused, and nothing but a new head is left initialised.

        A head is new where the folder holds another class, such as the base model or the language model. With
        ignore_mismatched_sizes, heads and embeddings of another shape are new too.
        """
        source = pretrained_model_name_or_path
        may_differ = kwargs.get("ignore_mismatched_sizes", False)
        kwargs["ignore_mismatched_sizes"] = True  # they are in the report, which is checked below
        saved = saved_classes(source, kwargs.get("subfolder", ""))
        verbosity = logging.get_verbosity()
        if cls.__name__ in saved:
            logging.set_verbosity_error()  # one sentence below instead of its table
        try:
            model, info = load_checked(cls, super().from_pretrained, source, *args, **kwargs)
        finally:
            logging.set_verbosity(verbosity)
        same_class = cls.__name__ in (saved or model.config.architectures or ())  # of a name of the hub, the latter
        check_fit(model, info, same_class=same_class, may_differ=may_differ)
        split_awaiting(model)
        return (model, info) if output_loading_info else model


class MaclaurinModel(MaclaurinPreTrainedModel):
    """Token ids (batch, time) -> hidden states (batch, time, hidden_size)."""

    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Embedding = ScaledEmbedding(config)
        layers = [MaclaurinLayer(config, mixer) for mixer in config.layer_mixers()]
        self.layers = nn.ModuleList(layers)
        self.lower_bounds = shared_bounds([layer.mixer for layer in layers])
        self.norm = _norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Bounds | None = None,
        cu_seq_lens_q: Bounds | None = None,
        seq_idx: Tensor | None = None,
        form: str = "auto",
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast:
        """cu_seqlens bounds the documents that are packed in the sequences of the batch, which then never meet.

        cu_seq_lens_q, seq_idx and position_ids that restart say the same in the words of collators (`document_bounds`).
        Nothing else is read from position_ids: mixers count for themselves.
        """
        if others:
            refuse_unknown(others, self.forward, MaclaurinForCausalLM.forward)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        B, T = hidden.shape[:2]
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = StateCache(len(self.layers))
        if past_key_values is not None and not isinstance(past_key_values, StateCache):
            raise TypeError(f"past_key_values must be a StateCache, got {type(past_key_values).__name__}")
        attention_mask = padding_of(attention_mask, T)
        cu_seqlens = document_bounds(
            (B, T),
            attention_mask,
            cu_seqlens=cu_seqlens,
            cu_seq_lens_q=cu_seq_lens_q,
            seq_idx=seq_idx,
            position_ids=position_ids,
        )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        every_hidden = [hidden]
        if packed := cu_seqlens is not None:
            hidden, attention_mask = hidden.flatten(0, 1)[None], None
        for index, layer in enumerate(self.layers):
            cached = None if past_key_values is None else past_key_values.layers[index]
            state = None if cached is None else cached.state
            mixed = layer(hidden, state, cached is not None, attention_mask, cu_seqlens, form)
            # where transformers gives a layer to another process, what stands in for it has no state
            hidden, state = mixed if isinstance(mixed, tuple) else (mixed, None)
            if cached is not None:
                cached.advance(state, T)
            every_hidden.append(hidden.reshape(B, T, -1) if packed else hidden)
        hidden = self.norm(every_hidden[-1])
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=past_key_values,
            hidden_states=(*every_hidden[:-1], hidden) if output_hidden_states else None,
        )

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value


def padding_of(attention_mask: Tensor | None, T: int) -> Tensor | None:
    """The mask of the last T tokens, None where none of them is padding.

    generate() passes the mask of all tokens so far; the state has already seen the earlier ones.
    """
    if attention_mask is None:
        return None
    attention_mask = attention_mask[:, -T:]
    return None if has_numbers(attention_mask) and bool(numbers(attention_mask).all()) else attention_mask


class MaclaurinForCausalLM(MaclaurinPreTrainedModel, GenerationMixin):
    """The language model. With labels it returns the loss as well."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan: ClassVar[dict[str, str]] = HEAD_PLAN

    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__(config)
        self.model = MaclaurinModel(config)
        if config.logit_cap is None:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        else:
            self.lm_head = CappedHead(config, config.logit_cap)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Bounds | None = None,
        cu_seq_lens_q: Bounds | None = None,
        seq_idx: Tensor | None = None,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """labels (batch, time) are the input ids, shifted here; −100 is ignored, and so is the first token of a document.

        shift_labels (batch, time): instead of labels, what each token predicts, for slices whose last token predicts the
        first one of the next slice.

        logits_to_keep: how many of the last tokens get logits, or which; 0 for all. With labels, logits are those of all
        tokens too, unless it is given; in training, where the loss has them for LOSS_CHUNK tokens at a time, all of them
        exist only if they are read. A graph cannot wait for that: compiled, logits_to_keep=1 is what saves their memory.
        Other arguments are those of MaclaurinModel.
        """
        # not in the signature, from which Trainer would conclude that every batch has both kinds of labels
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        packing: dict[str, Any] = {"cu_seqlens": cu_seqlens, "cu_seq_lens_q": cu_seq_lens_q, "seq_idx": seq_idx}
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **packing,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        loss: Tensor | None = None
        logits: Any = None
        later = self.training and not torch.compiler.is_compiling()  # logits are computed when they are read
        has_targets = labels is not None or shift_labels is not None
        in_chunks = has_targets and (later or logits_to_keep is not None)
        if logits_to_keep is not None or not in_chunks:
            kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-(logits_to_keep or 0), None)
            logits = of_layer(self.lm_head, hidden[:, kept])
        if has_targets:
            rows, head = (hidden, self.lm_head) if in_chunks else (logits, nn.Identity())
            if shift_labels is None:
                assert labels is not None
                B, T = labels.shape
                padding = padding_of(attention_mask, T)
                bounds = document_bounds((B, T), padding, position_ids=position_ids, **packing)
                rows, shift_labels = rows[:, :-1], predicted(labels, padding, bounds)[:, 1:]
            loss = _cross_entropy(rows, head, shift_labels, num_items_in_batch)
        rest = {"past_key_values": outputs.past_key_values, "hidden_states": outputs.hidden_states}
        if logits is None:
            return TrainingOutput(loss=loss, logits=when_read(self.lm_head, hidden), **rest)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **rest)

    def _get_stopping_criteria(self, *args: Any, **kwargs: Any) -> StoppingCriteriaList:
        """Without transformers' warning beyond max_position_embeddings: no mixer has a table of positions that ends."""
        criteria = super()._get_stopping_criteria(*args, **kwargs)
        for criterion in criteria:
            if isinstance(criterion, MaxLengthCriteria):
                criterion.max_position_embeddings = None
        return criteria

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any) -> None:
        """generate() makes its cache here: a KV cache could not hold the states of mixers."""
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation {generation_config.cache_implementation!r} is for a KV cache; "
                "leave it out: states are carried by a StateCache"
            )
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = StateCache(self.config.num_hidden_layers)

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """generate() always has a mask. It is left out where nothing is padding. Only prompts are looked at: a look at
        the mask of every step would wait for the device. Tokenizers are for stop strings, which are not looked for here."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(*args, **kwargs)
        for name in OF_GENERATE:
            inputs.pop(name, None)
        mask, cache, ids = (inputs.get(name) for name in ("attention_mask", "past_key_values", "input_ids"))
        if mask is None or not isinstance(cache, StateCache):
            return inputs
        T, began = (inputs["inputs_embeds"] if ids is None else ids).shape[1], cache.get_seq_length() > 0
        if T > 1 or not began:
            cache.padded = (began and cache.padded) or not bool(mask[:, -T:].all())
        if not cache.padded:
            inputs["attention_mask"] = None
        return inputs

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value


def predicted(labels: Tensor, padding: Tensor | None, bounds: Bounds | None) -> Tensor:
    """(batch, time): the labels that some token before them predicts; −100 at padding and where a document begins."""
    targets = labels.clone()
    if padding is not None:
        targets = targets.masked_fill(padding == 0, -100)
    if bounds is not None:
        starts = torch.as_tensor(bounds, device=labels.device).long()
        begins = torch.zeros(labels.numel() + 1, dtype=torch.bool, device=labels.device).index_fill(0, starts, True)
        targets = targets.masked_fill(begins[:-1].view_as(targets), -100)
    return targets


def _cross_entropy(rows: Tensor, head: nn.Module, targets: Tensor, num_items: Tensor | int | None) -> Tensor:
    """Token-weighted, in float32 at least. head: makes logits of the rows, some at a time. targets: what each predicts."""
    rows, targets = rows.flatten(0, 1), targets.flatten()
    if torch.compiler.is_compiling():
        total = summed_in_graph(head, rows, targets, LOSS_CHUNK)
    else:
        total = rows.new_zeros((), dtype=torch.promote_types(rows.dtype, torch.float32))
        *earlier, last = zip(rows.split(LOSS_CHUNK), targets.split(LOSS_CHUNK), strict=True)
        for some_rows, some_targets in earlier:
            total = total + recomputed(_summed, head, some_rows, some_targets)
        total = total + _summed(head, *last)  # where the backward begins: its logits are still there
    if num_items is None:
        num_items = (targets != -100).sum().clamp(min=1)
    return total / num_items


def _summed(head: nn.Module, rows: Tensor, targets: Tensor) -> Tensor:
    logits = of_layer(head, rows)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
