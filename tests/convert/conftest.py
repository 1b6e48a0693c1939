"""Tiny sources with random weights, and a text to convert them on."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

VOCABULARY = 64
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = SMALL | TEXT | {"num_key_value_heads": 2}


def build(name):
    """A model of that family. Large weights, so that attention is far from uniform."""
    torch.manual_seed(0)
    wide = {"initializer_range": 0.3}
    match name:
        case "bert":
            return BertModel(BertConfig(**SMALL | TEXT, **wide))
        case "bert-classes":
            return BertForSequenceClassification(BertConfig(**SMALL | TEXT, **wide, num_labels=3))
        case "distilbert":
            sizes = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
            return DistilBertModel(DistilBertConfig(**sizes, **TEXT, **wide))
        case "vit":
            return ViTForImageClassification(ViTConfig(**SMALL, **wide, image_size=16, patch_size=4, num_labels=3))
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**GROUPED, **wide))
        case "mistral":
            return MistralForCausalLM(MistralConfig(**GROUPED, **wide, sliding_window=None))
        case "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**GROUPED, **wide))
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**GROUPED, **wide, head_dim=8))
        case "maclaurin":
            return MaclaurinForCausalLM(MaclaurinConfig(**SMALL | TEXT, mixer="softmax", init="llama"))
    raise AssertionError(name)


ENCODERS = ("bert", "bert-classes", "distilbert")
DECODERS = ("llama", "mistral", "qwen2", "qwen3")


def tokenizer():
    """Words of one letter."""
    letters = [chr(code) for code in range(32, 32 + VOCABULARY - 4)]
    words = {token: number for number, token in enumerate(["[PAD]", "[BOS]", "[EOS]", "[UNK]", *letters])}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]", unk_token="[UNK]"
    )


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """The folder of a tiny model by the name of its family; made once."""
    made = {}

    def folder(name):
        if name not in made:
            path = tmp_path_factory.mktemp("source") / name
            build(name).save_pretrained(path)
            if name == "vit":
                described = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
                (path / "preprocessor_config.json").write_text(json.dumps(described))
            else:
                tokenizer().save_pretrained(path)
            made[name] = path
        return made[name]

    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Sentences of a few words, one a paragraph."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    generator = torch.Generator().manual_seed(0)
    words = ["THE", "CAT", "SAT", "ON", "A", "MAT", "AND", "SAW", "TWO", "DOGS", "RUN", "FAR", "AWAY", "FROM", "HOME"]
    lines = []
    for _ in range(400):
        chosen = torch.randint(len(words), (int(torch.randint(4, 9, (1,), generator=generator)),), generator=generator)
        lines.append(" ".join(words[index] for index in chosen.tolist()) + ".")
    path.write_text("\n\n".join(lines))
    return str(path)
