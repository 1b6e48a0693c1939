"""Names with options: every choice can be typed as it is shown, and what cannot be read is one sentence."""

import pytest

from maclaurin.common.choices import choices, spelled


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("gla", [("gla", {})]),
        (" gla , 2mamba ,", [("gla", {}), ("2mamba", {})]),
        ("gla,2mamba:conv_width=4,gate=true", [("gla", {}), ("2mamba", {"conv_width": 4, "gate": True})]),
        ("a:x=1,b,c:y=none,z=null", [("a", {"x": 1}), ("b", {}), ("c", {"y": "none", "z": None})]),
        ('a:x=[1,2],y={"p":1,"q":[]},b', [("a", {"x": [1, 2], "y": {"p": 1, "q": []}}), ("b", {})]),
        ('a:x="1,b",y=1e-3', [("a", {"x": "1,b", "y": 1e-3})]),
        ("a : x = 1", [("a", {"x": 1})]),
    ],
)
def test_a_comma_separates_names_and_options_belong_to_the_name_before(text, found):
    assert choices("mixers", text) == found


@pytest.mark.parametrize(
    "options", [{}, {"conv_width": 4, "gate": True}, {"rotary": "none"}, {"a": "true", "b": "x,y"}, {"a": [1, {"b": "]"}]}]
)
def test_a_choice_is_typed_as_it_is_shown(options):
    assert choices("mixers", f"gla,{spelled('2mamba', options)},linear") == [
        ("gla", {}),
        ("2mamba", options),
        ("linear", {}),
    ]


@pytest.mark.parametrize(
    "text", ["conv_width=4", "a:", "a:x", "a:x=", "a:=1", "a:x=1,x=2", "a:x=[1", 'a:x="1', "a:x={1}", "a:x=1]", "a:x y=1"]
)
def test_what_cannot_be_read_names_the_argument(text):
    with pytest.raises(ValueError, match=r"^mixers "):
        choices("mixers", text)
