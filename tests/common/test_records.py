"""Records go through JSON and back, and what is no record of theirs is one sentence that names the field."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from maclaurin.common.records import ABSENT, Record


@dataclass(frozen=True)
class Song(Record):
    title: str
    start: int = field(metadata={"key": "from"})
    rating: float


@dataclass(frozen=True, kw_only=True)
class Album(Record):
    name: str
    songs: Sequence[Song]
    sizes: tuple[int, int]
    live: bool = False
    year: int | None
    label: str | None = field(default=None, metadata=ABSENT)
    notes: Mapping[str, Mapping[str, int]]
    extra: Mapping[str, Any] = field(default_factory=dict)


ALBUM = Album(name="a", songs=(Song("b", 3, 0.5),), sizes=(1, 2), year=None, notes={"c": {"d": 1}}, extra={"e": [None]})


def test_a_record_is_the_same_after_json():
    values = json.loads(json.dumps(ALBUM.to_json()))
    assert values["songs"] == [{"title": "b", "from": 3, "rating": 0.5}]
    assert values["year"] is None and "label" not in values
    assert Album.from_json(values) == ALBUM


def test_other_versions_may_lack_fields_with_a_default_and_have_more():
    values = ALBUM.to_json()
    del values["live"], values["year"], values["extra"]
    assert Album.from_json(values | {"later": 1}) == Album(**vars(ALBUM) | {"extra": {}})


def test_whole_numbers_are_numbers_and_some_numbers_are_not_finite():
    assert Song.from_json({"title": "", "from": 1, "rating": 2}).rating == 2.0
    assert Song.from_json(json.loads('{"title": "", "from": 1, "rating": Infinity}')).rating == float("inf")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": 3}, "name must be a text, got 3"),
        ({"live": 1}, "live must be true or false, got 1"),
        ({"year": 1.5}, "year must be a whole number, got 1.5"),
        ({"year": True}, "year must be a whole number, got True"),
        ({"year": 10**400}, "year must be a whole number, got 1000"),
        ({"songs": None}, "songs must be a JSON list, got None"),
        ({"songs": "ab"}, "songs must be a JSON list, got 'ab'"),
        ({"songs": [3]}, "songs[0] must be a JSON object, got 3"),
        ({"songs": [{"title": "b", "from": 1}]}, "songs[0].rating is missing"),
        ({"songs": [{"title": "b", "from": None, "rating": 1}]}, "songs[0].from must be a whole number, got None"),
        ({"songs": [{"title": "b", "from": 1, "rating": 10**400}]}, "songs[0].rating must be a number, got 1000"),
        ({"songs": [{"title": "b", "from": 1, "rating": False}]}, "songs[0].rating must be a number, got False"),
        ({"sizes": [1]}, "sizes must have 2 entries, got 1"),
        ({"notes": []}, "notes must be a JSON object, got []"),
        ({"notes": {"c": {"d": "x"}}}, "notes.c.d must be a whole number, got 'x'"),
    ],
)
def test_a_field_of_another_type_is_named_with_its_place(change, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}") as raised:
        Album.from_json(ALBUM.to_json() | change)
    assert len(str(raised.value)) < 120


@pytest.mark.parametrize("values", [3, [], None, "x"])
def test_a_record_is_read_from_an_object_alone(values):
    with pytest.raises(ValueError, match="Album must be a JSON object"):
        Album.from_json(values)
