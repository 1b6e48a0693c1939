"""What cannot be compared is refused before anything is written."""

import pytest

from maclaurin.comparison.run import Asked, answered
from maclaurin.training import Recipe


@pytest.mark.parametrize(
    ("fields", "others", "said"),
    [
        ({"corpus": "missing.txt"}, {}, "missing.txt"),
        ({"validation": "missing.txt"}, {}, "missing.txt"),
        ({"trainer": {"optim": "sgdd"}}, {}, "cannot train with optim 'sgdd'"),
        ({}, {"second_corpus": "missing.txt"}, "missing.txt"),
        ({}, {"jobs": 0}, "jobs must be at least 1"),
    ],
    ids=str,
)
def test_a_refused_comparison_leaves_nothing_behind(fields, others, said, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a text of some words\n" * 50)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    recipe = Recipe(**{"output": str(tmp_path / "made" / "here"), "corpus": str(text), **sizes, **fields})
    asked = Asked(recipe, (1e-3,), 1, "linear", "gated", "minutes")
    with pytest.raises(ValueError, match=said):
        answered(asked, **{"second_corpus": None, "jobs": 1, "command": "maclaurin compare", **others})
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
