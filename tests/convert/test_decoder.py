"""A decoder trained here and made linear with nothing but defaults: nine tenths of what that costs come back."""

import json

import pytest
from typer.testing import CliRunner

from maclaurin.cli import app


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run("compare", "--mixers", "softmax", "--seeds", 1, "--output", folder)
    return folder / "softmax-seed0"


@pytest.mark.slow
@pytest.mark.parametrize("student", ["2mamba", "hedgehog"])
def test_a_fifth_of_the_training_wins_back_nine_tenths_of_the_loss(student, decoder, tmp_path):
    output = tmp_path / student
    (figures,) = json.loads(
        run("convert", decoder, "--student", student, "--output", output, "--lengths", "", "--json").stdout
    )
    recipe = json.loads((decoder / "recipe.json").read_text())
    plan = figures["plan"]
    assert plan["transfer_steps"] + plan["recover_steps"] <= recipe["steps"] / 5
    assert plan["batch_size"] * plan["max_length"] == recipe["batch_size"] * recipe["length"]
    untrained, after = (figures["stages"][stage] for stage in ("untrained", "recover"))
    gap = untrained["loss"] - untrained["teacher_loss"]
    assert gap > 0.2 and untrained["loss"] - after["loss"] >= 0.9 * gap
    states = []
    for tokens in (600, 664):  # whole rounds of folding apart
        flags = ("--prompt", "import ", "--max-new-tokens", tokens, "--temperature", 0, "--json")
        written = json.loads(run("generate", output, *flags).stdout)
        assert written["new_tokens"] == tokens
        states.append(written["state_bytes"])
    assert states[0] == states[1]
