"""`maclaurin consolidate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def consolidate(
    sharded: Annotated[Path, typer.Argument(help="Folder of a checkpoint of torch.distributed.checkpoint.")],
    output: Annotated[Path, typer.Argument(help="Folder for model.safetensors.")],
) -> None:
    """Make one file of the weights that several processes have saved, each its part."""
    from maclaurin.distributed import sharded as checkpoints

    print(checkpoints.consolidate(sharded, output))
