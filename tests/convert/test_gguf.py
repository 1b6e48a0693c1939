"""A tiny Llama as a GGUF file, written here by the gguf package, converted from end to end."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

gguf = pytest.importorskip("gguf")

from maclaurin.convert.run import convert  # noqa: E402
from maclaurin.convert.sources import recognise  # noqa: E402
from tests.convert.test_stages import plan, silent  # noqa: E402

SIZES = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def interleaved(weight, heads):
    """llama.cpp has the two halves of a rotation side by side."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write(file, model):
    config = model.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    words = ["<unk>", "<s>", "</s>", *bytes_to_unicode().values(), "ĠT"]
    words += [f"<{number}>" for number in range(config.vocab_size - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_merges(["Ġ T"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy().astype(np.float32)
        if "q_proj" in name or "k_proj" in name:
            array = interleaved(array, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3, tie_word_embeddings=False, bos_token_id=1)).eval()
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write(file, model)
    return model, file


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))


@torch.no_grad()
def test_the_weights_and_the_tokenizer_are_those_of_the_file(llama):
    model, file = llama
    source = recognise(str(file))
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(source.load()(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    tokenizer = source.processor()
    text = "The cat sat."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.chat_template == TEMPLATE
    assert recognise(str(file)).path == source.path  # made once


def test_a_gguf_file_is_converted_end_to_end(llama, corpus, tmp_path):
    _, file = llama
    mine = plan(
        file, corpus, tmp_path / "out", student="hedgehog", num_features=8, window=4, one_sum=True, keep_softmax="auto:1"
    )
    result = convert(mine, silent)
    assert result.finished
    kept = AutoModelForCausalLM.from_pretrained(mine.output).config.students
    assert sorted(kept) == ["hedgehog", "hedgehog", "softmax"]
    assert AutoTokenizer.from_pretrained(mine.output).chat_template == TEMPLATE
    assert result.figures.stages["recover"].loss < result.figures.stages["untrained"].loss


def test_what_is_no_gguf_file_is_refused(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="is not a GGUF file"):
        recognise(str(file))
    file.write_bytes(b"GGUF" + b"\xff" * 64)
    with pytest.raises(ValueError, match=r"x\.gguf "):
        recognise(str(file))
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_without_the_package_a_sentence_says_what_to_install(llama, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package gguf: pip install 'maclaurin\[gguf\]'"):
        recognise(str(llama[1]))
