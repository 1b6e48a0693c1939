"""`maclaurin export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a model of this package.")],
    to: Annotated[str, typer.Option(help="The layout, such as transformers-mamba2 or fla-gated-deltanet.")],
    output: Annotated[Path, typer.Option(help="Folder to write.")],
) -> None:
    """Write a model in the layout of a published checkpoint, for the code that it was published with."""
    from maclaurin.convert.layouts import export_layout

    for line in export_layout(folder, output, to):
        print(line)
