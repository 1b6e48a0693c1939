"""Makes `AutoModelForCausalLM.from_pretrained(folder)` work in a process that never imports maclaurin.

transformers has no entry point for packages that bring models; it finds classes by name below `transformers.models`, when a
folder's model_type asks for them. So the names of this package's types join its list as that is imported, and
`transformers.models.maclaurin` is a module that imports the classes. `pipeline`, `lm_eval --model hf` and `accelerate` load
models by their own processes, in which nobody could import maclaurin first.

maclaurin_auto.pth runs whenever Python starts, and imports this file when transformers is imported; this file imports
maclaurin when a folder asks for it. Both are installed beside the package (csrc/CMakeLists.txt).

With MACLAURIN_ACCELERATE=1, linear models of transformers also take the kernels of maclaurin (docs/transformers.md).
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder

LIST = "transformers.models.auto.configuration_auto"
SWITCH = "MACLAURIN_ACCELERATE"
CONFIGURATIONS = {
    "maclaurin": "MaclaurinConfig",
    "maclaurin_vision": "MaclaurinVisionConfig",
    "maclaurin-bert": "LinearBertConfig",
    "maclaurin-distilbert": "LinearDistilBertConfig",
    "maclaurin-llama": "LinearLlamaConfig",
    "maclaurin-mistral": "LinearMistralConfig",
    "maclaurin-qwen2": "LinearQwen2Config",
    "maclaurin-qwen3": "LinearQwen3Config",
    "maclaurin-vit": "LinearViTConfig",
}


class Finder:
    """Among those that Python asks for every module: answers for the list, and for the modules that the names stand for."""

    accelerates = os.environ.get(SWITCH, "0") not in ("", "0")  # until it has, when the first module with layers is imported

    @staticmethod
    def find_spec(name, path=None, target=None):
        if Finder.accelerates and name.rpartition(".")[2].startswith("modeling_"):
            return _accelerated(name, path, target)
        if not name.startswith("transformers.models."):
            return None
        try:
            return _list(path, target) if name == LIST else _home(name)
        except Exception:  # whatever becomes of transformers, this must not keep it from being imported
            return None


def _accelerated(name, path, target):
    Finder.accelerates = False
    import maclaurin

    maclaurin.accelerate_transformers()
    # Python is asking the finders already: the new one would not be asked about this module
    return sys.meta_path[0].find_spec(name, path, target)


def _list(path, target):
    spec = PathFinder.find_spec(LIST, path, target)
    run = spec.loader.exec_module

    def run_and_add_names(module):
        run(module)
        if isinstance(names := getattr(module, "CONFIG_MAPPING_NAMES", None), dict):
            names.update(CONFIGURATIONS)

    spec.loader.exec_module = run_and_add_names
    return spec


def _home(name):
    types = {f"transformers.models.{known.replace('-', '_')}": known for known in CONFIGURATIONS}
    return ModuleSpec(name, Home(types[name])) if name in types else None


class Home:
    """Loads `transformers.models.maclaurin` and the like: the package that registers the classes of a type."""

    def __init__(self, model_type):
        self.model_type = model_type

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        import_module("maclaurin.models.linearised" if "-" in self.model_type else "maclaurin.models")
        registered = sys.modules[LIST].CONFIG_MAPPING[self.model_type]
        setattr(module, CONFIGURATIONS[self.model_type], registered)


sys.meta_path.insert(0, Finder)
