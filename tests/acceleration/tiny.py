"""A tiny random model of every architecture that transformers' kernels are replaced in."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from maclaurin.bench.transformers import without_gpu_packages

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.1,
}
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 16}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
LATENT = {
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "layer_types": ["linear_attention", "full_attention"],
}

INKLING = {
    "layer_types": ["hybrid_sliding", "hybrid"],
    "mlp_layer_types": ["dense", "sparse"],
    "head_dim": 8,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "d_rel": 4,
    "rel_extent": 64,
    "sliding_window_size": 256,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}

# the class of the configuration, what it is given beside COMMON
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {"state_size": 8, "tie_word_embeddings": False}),
    "falcon_mamba": ("FalconMambaConfig", {"state_size": 8, "tie_word_embeddings": False}),
    "jamba": (
        "JambaConfig",
        {"mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "zamba": (
        "ZambaConfig",
        {"mamba_d_state": 8, "num_hidden_layers": 4, "layers_block_type": ["mamba", "mamba", "hybrid", "hybrid"]},
    ),
    "mamba2": ("Mamba2Config", {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 16, "chunk_size": 16}),
    "bamba": ("BambaConfig", MAMBA_2 | {"attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", MAMBA_2 | {"mamba_d_ssm": 64}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        MAMBA_2 | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32, "num_local_experts": 4},
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {
            "layers_block_type": ["mamba", "attention", "mamba"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "ssm_state_size": 16,
            "chunk_size": 16,
            "head_dim": 8,
        },
    ),
    "zamba2": (
        "Zamba2Config",
        {
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
            "mamba_d_state": 16,
            "chunk_size": 16,
        },
    ),
    "qwen3_next": ("Qwen3NextConfig", DELTA | EXPERTS),
    "qwen3_5": ("Qwen3_5TextConfig", DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", DELTA | EXPERTS),
    "qwen4_exp": (
        "Qwen4ExpTextConfig",
        DELTA
        | EXPERTS
        | {"hc_count": 2, "hc_lowrank": 4, "ngram_vocab_size_base": 64, "split_ngram_parts": 1}
        | {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8}
        | {"indexer_budget": 1024, "indexer_compress_ratio": 4},
    ),
    "olmo_hybrid": ("OlmoHybridConfig", DELTA),
    "kimi_linear": ("KimiLinearConfig", LATENT | {"linear_head_dim": 8, "linear_num_heads": 4}),
    "bailing_hybrid": ("BailingHybridConfig", LATENT | {"head_dim": 8}),
    "glm5_next": (
        "Glm5NextTextConfig",
        LATENT
        | {"linear_head_dim": 8, "linear_num_heads": 4, "q_lora_rank": 8, "qk_rope_head_dim": 0, "n_routed_experts": 4},
    ),
    "recurrent_gemma": ("RecurrentGemmaConfig", {"num_hidden_layers": 3, "attention_window_size": 256, "lru_width": 32}),
    "xlstm": ("xLSTMConfig", {"hidden_size": 128, "num_heads": 4, "chunk_size": 16}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        {
            "layer_types": ["conv", "full_attention"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "num_dense_layers": 1,
        },
    ),
    "lfm3": ("Lfm3Config", {"layer_types": ["conv", "full_attention"], "head_dim": 8}),
    "minimax": (
        "MiniMaxConfig",
        {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4, "block_size": 16, "head_dim": 8},
    ),
    "rwkv": ("RwkvConfig", {"context_length": 512}),
    "inkling": ("InklingTextConfig", INKLING),
    "inkling2": ("Inkling2TextConfig", INKLING),
}


@cache
def tiny(name: str) -> Any:
    import transformers

    config_class, options = TINY[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**COMMON | options)
    auto = transformers.AutoModelForCausalLM
    if name == "glm5_next":  # its text model alone has no head
        vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32}
        config = transformers.Glm5NextConfig(text_config=config, vision_config=vision)
        auto = transformers.AutoModelForImageTextToText
    with without_gpu_packages():
        model = auto.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that start at 0 or 1 would hide what is done with them
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model
