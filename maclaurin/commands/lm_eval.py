"""`maclaurin lm_eval`."""

from __future__ import annotations

import sys

import typer


def lm_eval(context: typer.Context) -> None:
    """Run the lm-evaluation-harness on models of this package: all flags are those of lm_eval.

    maclaurin lm_eval --model hf --model_args pretrained=FOLDER --tasks TASK; `maclaurin lm_eval run --help` lists the flags.
    """
    if context.args in (["--help"], ["-h"]):  # the harness would take seconds to say it
        print(context.get_help())
        return
    import lm_eval.__main__ as harness

    import maclaurin.models  # noqa: F401 - makes the Auto classes know them

    sys.argv = ["lm_eval", *context.args]
    harness.cli_evaluate()


# all flags are those of lm_eval, including --help
lm_eval.context_settings = {  # type: ignore[attr-defined]
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
    "token_normalize_func": str,
}
