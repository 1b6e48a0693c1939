"""`maclaurin eval --suite`: models trained, or one tested; tables on the screen, figures and a page in its folder."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from maclaurin.common.cores import cores
from maclaurin.common.files import write_json
from maclaurin.evals.results import ResultTable, SuiteResult
from maclaurin.evals.runner import load, run
from maclaurin.evals.summary import summary
from maclaurin.evals.tables import Watcher, distance_table, result_table
from maclaurin.page import missing
from maclaurin.processes.stopping import STOPS, exit_code


@dataclass(frozen=True)
class Command:
    suite: str
    experiments: list[Any]
    folder: Path
    console: Console
    as_json: bool

    def run(self, jobs: int | None) -> None:
        """Trains what is not done yet, in as many processes as there are cores unless `jobs` is given."""
        try:
            cells = {cell.key: cell for experiment in self.experiments for cell in experiment.cells(experiment.seeds)}
        except ImportError as error:  # of the library a dataset comes with; it says what to install
            raise ValueError(str(error)) from error
        done = sum(load(cell, self.folder) is not None for cell in cells.values())
        try:
            with Watcher(len(cells), done) as watch:
                errors = run(list(cells.values()), self.folder, jobs=cores() if jobs is None else jobs, watch=watch)
        except STOPS as stop:
            print(f"maclaurin: stopped; the same command goes on with the cells in {self.folder}", file=sys.stderr)
            raise SystemExit(exit_code(stop)) from None
        self._publish([summary(experiment, self.folder, errors) for experiment in self.experiments])
        if errors:
            count = "one cell" if len(errors) == 1 else f"{len(errors)} cells"
            print(f"maclaurin: {count} failed, such as: {next(iter(errors.values()))}", file=sys.stderr)
            raise SystemExit(1)

    def run_on(self, model: str) -> None:
        """Tests a trained model in place of training some."""
        if self.suite != "needle":
            raise ValueError(f"a trained model can be given to the suite 'needle' only; {self.suite!r} trains its own")
        from maclaurin.evals.saved import needle_table
        from maclaurin.models.folder import open_model

        opened, tokenizer = open_model(model)
        screen = Console(stderr=True)
        tables = []
        for experiment in self.experiments:
            tests = track(experiment.test, "needles", console=screen, transient=True, disable=not screen.is_terminal)
            tables.append(needle_table(opened, tokenizer, Path(model).name, experiment, tests))
        self._publish(tables)

    def _publish(self, tables: list[ResultTable]) -> None:
        results = SuiteResult(shlex.join(["maclaurin", *sys.argv[1:]]), self.suite, tables)
        file = self.folder / "results.json"
        write_json(file, results.to_json())
        if self.as_json:
            print(json.dumps(results.to_json(), indent=2))
        else:
            for table in tables:
                self.console.print(result_table(table))
                if by_distance := distance_table(table):
                    self.console.print(by_distance)
            self.console.print(f"figures: {file}")
        if sentence := missing():
            print(f"no page: {sentence}", file=sys.stderr)
            return
        from maclaurin.evals.page import page

        page(results).write(self.folder / "eval.html")
        print(self.folder / "eval.html", file=sys.stderr if self.as_json else sys.stdout)
