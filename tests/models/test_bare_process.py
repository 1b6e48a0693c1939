"""Auto classes, pipelines and lm_eval load a folder of this package in a process that never imports it (startup/)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import maclaurin.models.linearised
from maclaurin.data import byte_tokenizer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, MaclaurinForImageClassification, MaclaurinVisionConfig

ROOT = Path(__file__).parents[2]
STARTUP = ROOT / "startup"
AS_INSTALLED = f"import site; site.addsitedir({str(STARTUP)!r})\n"  # what Python does with site-packages when it starts
SIZES = {"vocab_size": 257, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One of each kind of model."""
    home = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    MaclaurinForCausalLM(MaclaurinConfig(**SIZES, eos_token_id=256)).save_pretrained(home / "language")
    MaclaurinForImageClassification(MaclaurinVisionConfig(image_size=8, patch_sizes=[4])).save_pretrained(home / "vision")
    llama = LlamaForCausalLM(LlamaConfig(**SIZES))
    maclaurin.models.linearised.linearise(llama, ["2mamba", "softmax"]).save_pretrained(home / "converted")
    for name in ("language", "converted"):
        byte_tokenizer().save_pretrained(home / name)
    return home


def run(script, folder=ROOT, **environment):
    """Away from the repository: `import maclaurin` finds the package, as it would if installed."""
    where = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment}
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=os.environ | where, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.split()


def test_every_model_is_found_and_nothing_is_imported_before(folders):
    script = """
import sys
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageClassification, pipeline
AutoModelForCausalLM.from_config(AutoConfig.for_model(
    "llama", vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
))
assert "maclaurin" not in sys.modules
for folder in ("language", "converted"):
    assert "maclaurin.models.linearised" not in sys.modules
    pipe = pipeline("text-generation", model=folder, device="cpu")
    print(type(pipe.model).__name__, len(pipe("ab", max_new_tokens=3, do_sample=False)))
print(type(AutoModelForImageClassification.from_pretrained("vision")).__name__)
print(type(AutoModel.from_pretrained("language")).__name__)
for auto in (AutoModel, AutoModelForCausalLM):  # what their error messages list
    assert {"MaclaurinConfig", "LinearLlamaConfig"} <= {config.__name__ for config in auto._model_mapping.keys()}
"""
    models = ["MaclaurinForCausalLM", "LinearLlamaForCausalLM", "MaclaurinForImageClassification", "MaclaurinModel"]
    assert run(AS_INSTALLED + script, folders) == [models[0], "1", models[1], "1", *models[2:]]


@pytest.mark.slow  # a second process that imports transformers
def test_lm_eval_needs_a_folder_only(folders):
    pytest.importorskip("lm_eval")
    script = """
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
model = HFLM(pretrained="language", device="cpu", batch_size=1)
request = Instance(request_type="loglikelihood", doc={}, arguments=("ab", "cd"), idx=0)
print(model.loglikelihood([request], disable_tqdm=True)[0][0] < 0)
"""
    assert run(AS_INSTALLED + script, folders)[-1] == "True"


@pytest.mark.slow
def test_the_command_of_lm_eval_scores_a_folder(folders, tmp_path):
    """Every question comes twice, each answer right once: whichever the model finds likelier, half of them are right."""
    pytest.importorskip("lm_eval")
    questions = [{"text": text, "answer": answer} for text in ("ab", "abba") for answer in (0, 1)]
    (tmp_path / "tiny.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (tmp_path / "tiny.yaml").write_text(f"""
task: tiny
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/tiny.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: [" a", " b"]
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
""")
    options = {"model": "hf", "model_args": "pretrained=language", "tasks": "tiny", "device": "cpu", "batch_size": 2}
    paths = {"include_path": tmp_path, "output_path": tmp_path / "scores.json"}
    line = ["lm_eval", *(word for name, value in (options | paths).items() for word in (f"--{name}", str(value)))]
    script = f"import runpy, sys; sys.argv = {line!r}; runpy.run_module('lm_eval', run_name='__main__')"
    run(AS_INSTALLED + script, folders, HF_DATASETS_OFFLINE="1", HF_DATASETS_CACHE=str(tmp_path / "cache"))
    (scores,) = tmp_path.glob("scores*.json")
    assert json.loads(scores.read_text())["results"]["tiny"]["acc,none"] == 0.5


def test_the_names_are_those_that_are_registered():
    sys.path.insert(0, str(STARTUP))
    try:
        import maclaurin_auto
    finally:
        sys.path.remove(str(STARTUP))
        sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__module__", "") != "maclaurin_auto"]
    registered = {name: kind.__name__ for name, kind in CONFIG_MAPPING._extra_content.items() if "maclaurin" in name}
    assert registered == maclaurin_auto.CONFIGURATIONS
    assert type(AutoConfig.for_model("maclaurin")) is MaclaurinConfig


@pytest.mark.parametrize("text", ["", "CONFIG_MAPPING_NAMES = None", "CONFIG_MAPPING_NAMES = {}"])
def test_another_transformers_is_imported_as_it_is(tmp_path, text):
    """Whatever a later release looks like. Starting up imports neither this package nor anything else."""
    place = tmp_path / "transformers" / "models" / "auto"
    place.mkdir(parents=True)
    for folder in (place, *place.parents[:2]):
        (folder / "__init__.py").touch()
    (place / "configuration_auto.py").write_text(text)
    script = f"""
import sys
before = set(sys.modules)
import site; site.addsitedir({str(STARTUP)!r})
assert set(sys.modules) - before <= {{"site"}}
sys.path.insert(0, ".")
import transformers.models.auto.configuration_auto as found
print(len(getattr(found, "CONFIG_MAPPING_NAMES", None) or ""))
"""
    assert run(script, tmp_path) == ["9" if "{" in text else "0"]


def test_it_is_installed(folders):
    """In the environment that `make setup` makes: nothing is set, and accelerate starts the process."""
    names = run("import sys; print(*(finder.__name__ for finder in sys.meta_path if isinstance(finder, type)))", folders)
    if "MaclaurinAuto" not in names:
        pytest.skip("maclaurin is not installed here with its start-up file: make setup does that")
    script = folders / "script.py"
    script.write_text(
        "from transformers import AutoModelForCausalLM\n"
        "print(type(AutoModelForCausalLM.from_pretrained('language')).__name__)\n"
    )
    launched = f"""
import sys
from accelerate.commands.accelerate_cli import main
sys.argv = ["accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no",
            "--dynamo_backend", "no", {str(script)!r}]
main()
"""
    assert "MaclaurinForCausalLM" in run(launched, folders)
