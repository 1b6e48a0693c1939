"""YAML files: what is wrong is one sentence with line and column, and options may be written as a mapping."""

import json

import pytest

from maclaurin.training import Recipe
from maclaurin.training.configured import compare_recipe, train_recipe


def of(text, tmp_path):
    (tmp_path / "run.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return train_recipe({}, tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("steps: 3\n\tlength: 4\n", r"is no YAML, line 2, column 1: found character '\\t'"),
        ("steps: 3\n  length: 4\n", "is no YAML, line 2, column 9: mapping values are not allowed here"),
        ("steps: 3\nlength: 4\nsteps: 5\n", "is no YAML, line 3, column 1: 'steps' is there twice"),
        ("mixer_options:\n  a: 1\n  a: 2\n", "is no YAML, line 3, column 3: 'a' is there twice"),
        ("steps: [3\n", "is no YAML, line 2, column 1: expected"),
        ("steps: 3\n---\nsteps: 4\n", "is no YAML, line 2, column 1"),
        ("? [a, b]\n: 3\n", "is no YAML, line 1, column 3: found unhashable key"),
        ("steps: !!python/name:os.system\n", "is no YAML, line 1, column 8: could not determine a constructor"),
        ("steps: 'x\n", "is no YAML, line 2, column 1"),
        (b"steps: \xff", "cannot be read: 'utf-8' codec"),
        ("a: &a [1]\nb: *a\n", "line 2 has an alias"),
        ("mixer_options: " + 9 * "{a: " + 9 * "}", "line 1 is nested too deeply"),
        ("- steps\n", "must have one name and value per line, got list"),
        ("steps: {a: 1}\n", "must have a whole number as steps, got dict"),
        ("track: no\n", "must have a text as track, got False"),
        ("1: 2\n", "has '1'"),
    ],
)
def test_a_malformed_file_is_one_sentence_with_its_place(text, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence) as refused:
        of(text, tmp_path)
    assert len(str(refused.value).splitlines()) == 1 and str(refused.value).startswith("config ")


def test_a_mapping_of_options_is_their_json(tmp_path):
    expected = Recipe(mixer_options='{"conv_width":4, "rotary_options": {"theta": 1}}')
    mapping = "mixer_options:\n  conv_width: 4\n  rotary_options:\n    theta: 1\n"
    assert of(mapping, tmp_path) == of(f"mixer_options: '{expected.mixer_options}'\n", tmp_path) == expected
    assert Recipe(mixer_options={"conv_width": 4, "rotary_options": {"theta": 1}}) == expected
    assert expected.options() == {"conv_width": 4, "rotary_options": {"theta": 1}}
    by_name = of("mixer: gla,2mamba\nmixer_options:\n  2mamba:\n    conv_width: 4\n", tmp_path)
    assert by_name.config().options_of("2mamba")["conv_width"] == 4
    assert "conv_width" not in by_name.config().options_of("gla")


def test_options_beside_the_names_of_mixers(tmp_path):
    recipe = of("mixer: 'gla,2mamba:conv_width=4,gate=true'\n", tmp_path)
    assert (recipe.mixer, recipe.options()) == ("gla,2mamba", {"2mamba": {"conv_width": 4, "gate": True}})
    assert Recipe(mixer="2mamba:conv_width=4").options() == {"conv_width": 4}
    nested = Recipe(mixer='gla:rotary_options={"theta":1}')
    assert nested.config().options_of("gla")["rotary_options"] == {"theta": 1}
    with pytest.raises(ValueError, match="in mixer or in mixer_options, not both"):
        Recipe(mixer="2mamba:conv_width=4", mixer_options='{"gate": true}')
    with pytest.raises(ValueError, match="the same options in all layers"):
        Recipe(mixer="2mamba:conv_width=4,2mamba")


def test_the_warm_up_and_the_evaluations_follow_the_steps_unless_they_are_given(tmp_path):
    assert of("batch_size: 2\n", tmp_path).warmup_steps == 50
    for steps in (1, 20, 4000):
        share = steps // 20
        assert Recipe(steps=steps).warmup_steps == share
        assert train_recipe({"steps": steps}).warmup_steps == train_recipe({"max_steps": steps}).warmup_steps == share
        assert of(f"max_steps: {steps}\n", tmp_path).warmup_steps == share
        compared, _ = compare_recipe({"steps": steps})
        assert (compared.warmup_steps, compared.eval_every) == (steps // 10, steps // 5)  # as in the budgets
        for name in (train_recipe, lambda given: compare_recipe(given)[0]):
            own = name({"steps": steps, "warmup_steps": 7, "eval_every": 6})
            assert (own.warmup_steps, own.eval_every) == (7, 6)
    Recipe(steps=20, warmup_steps=3).save(tmp_path)  # of a run that goes on it is past
    assert train_recipe({"steps": 2000, "output": str(tmp_path)}, resume=True).warmup_steps == 3


def test_numbers_without_a_point_are_numbers_under_every_name(tmp_path):
    recipe = of("lr: 1e-3\nadam_epsilon: 1e-6\n", tmp_path)
    assert (recipe.learning_rate, recipe.trainer) == (1e-3, {"adam_epsilon": 1e-6})


def test_a_stored_recipe_is_a_file_of_its_own_kind(tmp_path):
    recipe = Recipe(mixer="gla:conv_width=4", optim="sgd", output=str(tmp_path))
    recipe.save(tmp_path)
    assert of((tmp_path / "recipe.json").read_text(), tmp_path) == recipe
    assert json.loads((tmp_path / "recipe.json").read_text())["trainer"] == {"optim": "sgd"}
