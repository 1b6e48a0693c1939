"""Sources are recognised, or refused in one sentence before anything is loaded; their folders are never written to."""

import json
import shutil

import pytest

from maclaurin.convert.sources import recognise


@pytest.fixture
def bert(source, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(source("bert"), tmp_path / "bert")


def change_config(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("bert", "encoder"), ("distilbert", "encoder"), ("vit", "vision"), ("llama", "decoder"), ("maclaurin", "maclaurin")],
)
def test_sources_are_recognised(source, name, kind):
    found = recognise(str(source(name)))
    assert found.kind == kind
    assert type(found.load()) is found.architecture


def pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (pickle_only, "pickled weights"),
        (without_tokenizer, "tokenizer"),
        (truncated, "broken"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
        (lambda folder: change_config(folder, model_type="gpt2"), "not supported"),
        (lambda folder: change_config(folder, model_type="t5"), "every pair of positions"),
        (lambda folder: change_config(folder, model_type="maclaurin-bert"), "converted already"),
        (lambda folder: change_config(folder, model_type="maclaurin", mixer="2mamba"), "no softmax layer"),
        (lambda folder: change_config(folder, position_embedding_type="relative_key"), "relative_key"),
        (lambda folder: change_config(folder, auto_map={"AutoModel": "code.Model"}), "never run"),
        (lambda folder: change_config(folder, is_decoder=True), "is_decoder"),
        (lambda folder: change_config(folder, architectures=["LlamaModel"]), "architectures"),
        (lambda folder: change_config(folder, architectures=None), "architectures"),
    ],
)
def test_bad_sources_are_refused_in_a_sentence(bert, spoil, says):
    recognise(str(bert))
    spoil(bert)
    with pytest.raises(ValueError, match=says) as caught:
        recognise(str(bert))
    assert "\n" not in str(caught.value)


def test_what_is_neither_here_nor_on_the_hub_is_refused(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for spec in ("./nowhere", "/nowhere/at/all", "a/b/c"):
        with pytest.raises(ValueError, match="no folder here"):
            recognise(spec)


@pytest.mark.parametrize(("fields", "says"), [({}, None), ({"model_type": "gpt2"}, "not supported")])
def test_of_the_hub_weights_come_last_and_pickles_never(bert, monkeypatch, fields, says):
    """A hub that has the folder of a model: what is refused by its description is not fetched further."""
    change_config(bert, **fields)
    asked = []

    def hub(spec, allow_patterns):
        asked.append(allow_patterns)
        return str(bert)

    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    if says is None:
        assert recognise("owner/name").path == bert
        assert [("*.safetensors" in patterns) for patterns in asked] == [False, True]
    else:
        with pytest.raises(ValueError, match=says):
            recognise("owner/name")
        assert len(asked) == 1 and "*.safetensors" not in asked[0]
    assert not any(pattern in ("*", "*.bin", "*.pt") for patterns in asked for pattern in patterns)


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch):
    def hub(spec, allow_patterns):
        raise ConnectionError("no route\nand more about it")

    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    with pytest.raises(ValueError, match=r"cannot be had from the hub: no route$"):
        recognise("owner/name")


def test_pooling_is_that_of_the_source(bert):
    assert recognise(str(bert)).pooling() == "mean"
    (bert / "1_Pooling").mkdir()
    for chosen, expected in (({"pooling_mode_cls_token": True}, "class"), ({"pooling_mode_mean_tokens": True}, "mean")):
        (bert / "1_Pooling" / "config.json").write_text(json.dumps(chosen))
        assert recognise(str(bert)).pooling() == expected
    (bert / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="pools"):
        recognise(str(bert)).pooling()


def test_settings_of_generation_that_cannot_be_saved_are_refused_before_the_work(source, tmp_path):
    folder = shutil.copytree(source("llama"), tmp_path / "llama")
    (folder / "generation_config.json").write_text('{"output_attentions": true, "return_dict_in_generate": false}')
    with pytest.raises(ValueError, match=r"generation_config.json contradicts itself: .*output_attentions") as caught:
        recognise(str(folder)).load()
    assert "\n" not in str(caught.value)
