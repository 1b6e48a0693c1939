"""A model's folder may come from anybody: no code of it runs, nothing outside is read, and a bad file is one sentence."""

import ast
import io
import json
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import maclaurin
import maclaurin.models.generation
from maclaurin.cli import main
from maclaurin.data import byte_tokenizer, open_tokenizer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, MaclaurinVisionConfig
from maclaurin.models.folder import open_model

SIZES = {"vocab_size": 257, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    MaclaurinForCausalLM(MaclaurinConfig(**SIZES, mixer="softmax")).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def change(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def refused(folder, *says, load=open_model):
    with pytest.raises(ValueError, match=re.escape(says[0])) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    for part in says:
        assert part in message


COMMANDS = ("generate {}", "eval {}", "convert {} --output out", "lab card {}", "train --tokenizer {} --output out")


@pytest.mark.parametrize("stays", [{}, {"model_type": "stranger"}], ids=["known type", "own type"])
@pytest.mark.parametrize("command", COMMANDS)
def test_code_of_a_model_never_runs_though_the_user_says_yes(folder, tmp_path, command, stays, monkeypatch, capsys):
    marker = tmp_path / "marker"
    for name in ("configuration_stranger", "modeling_stranger", "tokenization_stranger"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\nclass Stranger: pass\n")
    model = {"AutoConfig": "configuration_stranger.Stranger", "AutoModelForCausalLM": "modeling_stranger.Stranger"}
    tokenizer = {"AutoTokenizer": ["tokenization_stranger.Stranger", "tokenization_stranger.Stranger"]}
    change(folder / "config.json", auto_map=model, **stays)
    change(folder / "tokenizer_config.json", auto_map=tokenizer, tokenizer_class="Stranger")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setenv("TRANSFORMERS_TRUST_REMOTE_CODE", "1")
    with pytest.raises(SystemExit) as ended:
        main(command.format(folder).split())
    shown = capsys.readouterr()
    assert not marker.exists()
    assert ended.value.code == 2 and "[y/N]" not in shown.out
    assert shown.err.startswith("maclaurin: ") and shown.err.count("\n") == 1 and "never run" in shown.err


def test_every_load_says_that_code_is_not_trusted():
    """Found in the syntax tree: a call of from_pretrained or from_config names it, or is one of this project's classes."""
    own = {"MaclaurinForCausalLM", "MaclaurinConfig", "super", "type", "cls"}
    package = Path(maclaurin.__file__).parent
    seen = 0
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in ("from_pretrained", "from_config"):
                continue
            owner = node.func.value
            root = owner
            while isinstance(root, ast.Attribute | ast.Call):
                root = root.value if isinstance(root, ast.Attribute) else root.func
            seen += 1
            named = {word.arg: word.value for word in node.keywords}
            trusted = named.get("trust_remote_code")
            said = isinstance(trusted, ast.Constant) and trusted.value is False
            assert said or root.id in own, f"{file.name}:{node.lineno} leaves trust_remote_code to an answer on the terminal"
    assert seen > 8


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}),
        ("config.json", {"attn_implementation": "owner/kernel"}),
        ("config.json", {"text_config": {"_attn_implementation": "owner/kernel"}}),
        ("config.json", {"fusion_config": {"a": "b"}}),
        ("config.json", {"transformers_weights": "other.safetensors"}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../elsewhere/tokenizer.9.json"]}),
    ],
)
def test_what_leads_out_of_the_folder_is_refused(folder, name, fields):
    change(folder / name, **fields)
    refused(folder, name)


def test_an_adapter_does_not_bring_in_a_model_from_elsewhere(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere", "peft_type": "LORA"}')
    refused(folder, "adapter_config.json")
    refused(folder, "adapter_config.json", load=MaclaurinForCausalLM.from_pretrained)


def sharded(folder):
    """The same weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = list(weights)[::2], list(weights)[1::2]
    files = ["model-1.safetensors", "model-2.safetensors"]
    for file, names in zip(files, halves, strict=True):
        save_file({name: weights[name] for name in names}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, names in zip(files, halves, strict=True) for name in names}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index, places


@pytest.mark.parametrize("where", ["{}/elsewhere/model-2.safetensors", "../elsewhere/model-2.safetensors", 3, ""])
def test_an_index_is_not_followed_out_of_its_folder(folder, tmp_path, where):
    index, places = sharded(folder)
    open_model(folder)
    (tmp_path / "elsewhere").mkdir()
    (folder / "model-2.safetensors").rename(tmp_path / "elsewhere" / "model-2.safetensors")
    where = where.format(tmp_path) if isinstance(where, str) else where
    moved = {name: where if file == "model-2.safetensors" else file for name, file in places.items()}
    index.write_text(json.dumps({"metadata": {}, "weight_map": moved}))
    refused(folder, str(index))
    refused(folder, str(index), load=MaclaurinForCausalLM.from_pretrained)
    refused(folder, str(index), load=AutoModelForCausalLM.from_pretrained)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_is_not_followed_out_of_its_folder(folder, tmp_path, name):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    refused(folder, name, "link")


def test_a_cache_of_the_hub_links_to_its_blobs(folder, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0a1b", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    open_model(snapshot)
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "elsewhere.json")
    refused(snapshot, "config.json", "link")


NO_SIZES = ("x", None, True, -1, 0, 1.5, 10**12, 10**400, float("nan"), [], {}, [[1]])


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_size_is_a_whole_number_that_can_be(name):
    for value in NO_SIZES:
        with pytest.raises(ValueError, match=f"^{name} must be a whole number from 1 to "):
            MaclaurinConfig(**SIZES | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rms_norm_eps", "x"),
        ("rms_norm_eps", float("nan")),
        ("initializer_range", -1),
        ("use_cache", "yes"),
        ("tie_word_embeddings", 1),
        ("eos_token_id", [1, "x"]),
        ("pad_token_id", {}),
        ("num_key_value_heads", 0),
        ("mixer", 3),
        ("mixer", [["softmax"]]),
        ("mixer_options", [1]),
        ("mixer_options", {"window": {"a": {"b": {"c": 1}}}}),
        ("mixer_options", {"window": float("inf")}),
        ("dtype", "int32"),
        ("dtype", "load"),
        ("dtype", 7),
        ("num_labels", 10**9),
        ("id2label", []),
        ("architectures", 3),
        ("to_dict", 1),
        ("layer_mixers", 1),
        ("attribute_map", 3),
    ],
)
def test_a_field_of_another_kind_is_named(name, value):
    # older releases of transformers refuse their own fields themselves
    with pytest.raises(
        (ValueError, StrictDataclassFieldValidationError), match=f"^{name}|^Validation error for field '{name}'"
    ):
        MaclaurinConfig(**SIZES | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image_size", "x"),
        ("image_size", [8, -8]),
        ("num_channels", 10**12),
        ("hidden_sizes", 96),
        ("hidden_sizes", [True]),
        ("depths", [10**9]),
        ("num_attention_heads", [0]),
        ("mlp_ratios", ["x"]),
        ("mlp_ratios", [float("inf")]),
        ("patch_sizes", [None]),
        ("patch_norm", 1),
        ("pooling", {}),
        ("layer_norm_eps", None),
        ("mixer", {}),
        ("mixer_options", "x"),
        ("num_labels", -1),
    ],
)
def test_a_field_of_a_vision_model_of_another_kind_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        MaclaurinVisionConfig(**{name: value})


def test_sizes_that_multiply_to_the_absurd_are_refused():
    with pytest.raises(ValueError, match="parameters, more than"):
        MaclaurinConfig(**SIZES | {"vocab_size": 2**30, "hidden_size": 2**20})


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 60_000},
        {"vocab_size": 2**30},
        {"hidden_size": 2**18},
        {"intermediate_size": 2**30},
        {"mixer_options": {"num_kv_heads": 2**20}},
        {"num_labels": 10**9},
    ],
    ids=str,
)
@pytest.mark.parametrize("load", [open_model, MaclaurinForCausalLM.from_pretrained], ids=["open", "from_pretrained"])
def test_no_memory_is_taken_for_what_the_weights_do_not_hold(folder, fields, load):
    change(folder / "config.json", **fields)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(folder, str(folder / "config.json"), load=load)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes


@pytest.mark.parametrize(
    "fields", [{"num_hidden_layers": 10**9}, {"vocab_size": 2**40}, {"max_position_embeddings": "x"}], ids=str
)
def test_a_model_of_transformers_is_held_to_the_same(tmp_path, fields):
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    change(tmp_path / "config.json", **fields)
    refused(tmp_path, str(tmp_path / "config.json"))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '{"a": NaN', DEEP, '{"a": ' + "[" * 500 + "]" * 500 + "}", "\udcff"]
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_no_description_is_named(folder, name, text):
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    refused(folder, str(folder / name))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("config.json", {"model_type": 3}),
        ("config.json", {"model_type": "no such"}),
        ("config.json", {"mixer": "no such"}),
        ("generation_config.json", {"eos_token_id": "x"}),
        ("generation_config.json", {"eos_token_id": [1, None]}),
        ("tokenizer_config.json", {"tokenizer_class": 3}),
        ("tokenizer_config.json", {"model_max_length": {}}),
        ("tokenizer_config.json", {"added_tokens_decoder": 3}),
        ("tokenizer.json", {"model": 3}),
        ("tokenizer.json", {"added_tokens": [3]}),
        ("tokenizer.json", {"decoder": {"type": "no such"}}),
    ],
)
def test_what_a_parser_trips_over_is_one_sentence(folder, name, fields):
    change(folder / name, **fields)
    refused(folder, str(folder))


def test_a_tokenizer_alone_is_held_to_the_same(folder):
    change(folder / "tokenizer.json", decoder={"type": "no such"})
    refused(str(folder), str(folder), load=open_tokenizer)


def test_ids_beyond_the_vocabulary_are_refused(folder):
    described = json.loads((folder / "tokenizer.json").read_text())
    described["model"]["vocab"]["a"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(described))
    refused(folder, "1000000", "do not fit")


def test_a_file_does_not_decide_how_a_text_goes_on(folder):
    change(
        folder / "generation_config.json", eos_token_id=10**30, num_beams=10**9, num_return_sequences=10**9, min_length=10**9
    )
    model, tokenizer = open_model(folder)
    assert maclaurin.models.generation.continue_text(model, tokenizer, "ab", max_new_tokens=2, temperature=0).new_tokens == 2


@pytest.mark.parametrize("place", [0, 3, 8, 9, 200])
def test_damaged_weights_are_named(folder, place):
    file = folder / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[place] ^= 0x55
    file.write_bytes(damaged)
    refused(folder, str(folder))
    file.write_bytes(damaged[: len(damaged) // 2])
    refused(folder, str(folder), load=MaclaurinForCausalLM.from_pretrained)


def test_pickles_are_not_loaded_by_any_door(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    for load in (open_model, MaclaurinForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained):
        refused(folder, "pickled weights are never loaded", load=load)
