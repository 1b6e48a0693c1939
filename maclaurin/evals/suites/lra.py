"""Tasks of the Long Range Arena, one answer a sequence."""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Problem, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import CORE, MORE, rows_of


def lra(preset: str) -> list[Experiment]:
    names = CORE if preset == "quick" else (*CORE, *MORE)
    source = "MetaLA, arXiv 2411.10741, the Arena's full size"
    listops = Experiment(
        "listops",
        "ListOps, small: 16 to 128 tokens, depth 4, 5 arguments",
        rows_of(*names),
        Setting(model="classifier", steps=1000, batch=32, examples=1000),
        train=(Problem("listops", {"longest": 128, "shortest": 16, "depth": 4, "arguments": 5}),),
        test=(Problem("listops", {"longest": 128, "shortest": 16, "depth": 4, "arguments": 5}),),
        learning_rates=(1e-3, 3e-3),
        published={"metala": "0.5934"},
        source=source,
    )
    pathfinder = replace(
        listops,
        name="pathfinder",
        title="Pathfinder, small: 24x24 pixels read one by one, 3 dashes",
        setting=replace(listops.setting, steps=500, batch=16, examples=500),
        train=(Problem("pathfinder", {"size": 24, "dashes": 3}),),
        test=(Problem("pathfinder", {"size": 24, "dashes": 3}),),
        published={"metala": "0.9166"},
    )
    if preset == "quick":
        return [listops]
    if preset == "standard":
        larger = replace(listops.setting, layers=4, width=128, inner=256, steps=10_000)
        return [replace(experiment, setting=larger, seeds=3) for experiment in (listops, pathfinder)]
    paper = []
    # width, layers, MLP, learning rate and batch of MetaLA's runs; how many steps is not known
    for name, title, width, layers, inner, rate, batch, figure in (
        ("listops", "ListOps", 32, 6, 64, 5e-4, 128, "0.5934"),
        ("imdb", "Text", 128, 4, 256, 4e-3, 64, "0.8927"),
        ("aan", "Retrieval", 256, 2, 512, 8e-4, 128, "0.9128"),
        ("cifar10", "Image", 512, 6, 512, 3e-3, 128, "0.9188"),
        ("pathfinder", "Pathfinder", 128, 6, 128, 2e-3, 256, "0.9166"),
    ):
        # the papers are in no hub: a folder of this name, here or in that of --data
        where = {"source": "aan"} if name == "aan" else {}
        part = {"split": "test"} if name in ("imdb", "aan", "cifar10") else {}
        paper.append(
            replace(
                listops,
                name=name,
                title=f"{title} of the Long Range Arena",
                setting=Setting(
                    "pairs" if name == "aan" else "classifier",
                    width,
                    4,
                    layers,
                    inner,
                    steps=50_000,
                    batch=batch,
                    examples=2000,
                ),
                train=(Problem(name, where),),
                test=(Problem(name, where | part),),
                learning_rates=(rate,),
                seeds=3,
                published={"metala": figure},
            )
        )
    return paper
