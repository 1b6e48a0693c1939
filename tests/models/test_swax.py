"""SWAX: an mLSTM in even layers, sliding-window attention in odd ones, written as a pattern that repeats."""

import torch

import maclaurin
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

PATTERN = ["mlstm", "sliding-window"]
SWAX = {"mixer": PATTERN, "mixer_options": {"sliding-window": {"window": 16}}}


def test_a_pattern_repeats_over_the_layers(tmp_path):
    config = MaclaurinConfig.of_size("tiny", vocab_size=50, **SWAX)
    assert config.layer_mixers() == PATTERN * 2
    MaclaurinForCausalLM(config).save_pretrained(tmp_path)
    loaded = MaclaurinForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.mixer == PATTERN
    assert [getattr(layer.mixer, "window", None) for layer in loaded.model.layers] == [None, 16, None, 16]


def test_it_learns_a_text_and_says_it():
    """96 random tokens, continued from the first 32 of them in a state that does not grow."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = MaclaurinForCausalLM(MaclaurinConfig(**sizes, **SWAX, eos_token_id=None, pad_token_id=0))
    text = torch.randint(1, 40, (1, 96))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(200):
        loss = model(text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    assert loss.item() < 0.05
    model.eval()
    result = model.generate(text[:, :32], max_new_tokens=64, do_sample=False, return_dict_in_generate=True)
    assert torch.equal(result.sequences, text)
    layers = model.model.layers
    assert result.past_key_values.nbytes == sum(layer.mixer.state_nbytes(10**6) for layer in layers)


def test_both_mixers_have_four_matrices_of_the_models_width():
    """Plus gates and a norm. With an MLP of 8·d² that is 1.41 and 6.85 billion for the published shapes."""
    d, heads = 256, 4
    counts = {
        name: sum(parameter.numel() for parameter in maclaurin.build_mixer(name, d, heads).parameters()) for name in PATTERN
    }
    gates_and_norm = 2 * heads * (d + 1) + d
    assert counts == {"mlstm": 4 * d**2 + gates_and_norm, "sliding-window": 4 * d**2}
    for d, layers, billions in ((2048, 24, 1.41), (4096, 32, 6.85)):
        assert round((layers * 12 * d**2 + 2 * 50_304 * d) / 1e9, 2) == billions
