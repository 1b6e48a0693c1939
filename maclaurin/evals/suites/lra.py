"""Tasks of the Long Range Arena, one answer per sequence."""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import CORE, MORE, rows_of

SOURCE = "MetaLA, arXiv 2411.10741, the Arena's full size"
# width, layers, MLP, learning rate, batch and accuracy of MetaLA's runs; how many steps is not known
METALA = {
    "listops": ("ListOps", 32, 6, 64, 5e-4, 128, "0.5934"),
    "imdb": ("Text", 128, 4, 256, 4e-3, 64, "0.8927"),
    "aan": ("Retrieval", 256, 2, 512, 8e-4, 128, "0.9128"),
    "cifar10": ("Image", 512, 6, 512, 3e-3, 128, "0.9188"),
    "pathfinder": ("Pathfinder", 128, 6, 128, 2e-3, 256, "0.9166"),
    "path-x": ("Path-X", 32, 6, 32, 7.5e-4, 256, "0.9657"),
}
STORED = ("imdb", "aan", "cifar10")  # with a test split


def lra(preset: str) -> list[Experiment]:
    if preset == "paper":
        return [_as_published(name) for name in METALA]
    return [_listops()] if preset == "quick" else _standard()


def _listops() -> Experiment:
    problem = Problem("listops", {"longest": 128, "shortest": 16, "depth": 4, "arguments": 5})
    return Experiment(
        "listops",
        "ListOps, small: 16 to 128 tokens, depth 4, 5 arguments",
        rows_of(*CORE),
        Setting(model="classifier", steps=1000, batch=32, examples=1000),
        train=(problem,),
        test=(problem,),
        learning_rates=(1e-3, 3e-3),
        published={"metala": METALA["listops"][-1]},
        source=SOURCE,
    )


def _standard() -> list[Experiment]:
    small = _listops()
    listops = replace(
        small,
        rows=rows_of(*CORE, *MORE),
        setting=replace(small.setting, layers=4, width=128, inner=256, steps=10_000),
        seeds=3,
    )
    problem = Problem("pathfinder", {"size": 24, "dashes": 3})
    pathfinder = replace(
        listops,
        name="pathfinder",
        title="Pathfinder, small: 24x24 pixels read one by one, 3 dashes",
        train=(problem,),
        test=(problem,),
        published={"metala": METALA["pathfinder"][-1]},
    )
    return [listops, pathfinder]


def _as_published(name: str) -> Experiment:
    title, width, layers, inner, rate, batch, accuracy = METALA[name]
    model = "pairs" if name == "aan" else "classifier"
    # the papers (aan) are not on the hub: a folder of this name, here or in that of --data
    where = {"source": "aan"} if name == "aan" else {}
    part = {"split": "test"} if name in STORED else {}
    return Experiment(
        name,
        f"{title} of the Long Range Arena",
        rows_of(*CORE, *MORE),
        Setting(model, width, 4, layers, inner, steps=50_000, batch=batch, examples=2000),
        train=(Problem(name, where),),
        test=(Problem(name, where | part),),
        learning_rates=(rate,),
        seeds=3,
        published={"metala": accuracy},
        source=SOURCE,
    )
