"""What a verdict says of made-up losses: orders that hold, that are reversed, and that seeds do not decide."""

from dataclasses import replace

import pytest

from maclaurin.evals.cells import Setting
from maclaurin.evals.results import Point, ResultRow, ResultTable
from maclaurin.reproduce.table import Table
from maclaurin.reproduce.verdict import answer_text, verdict

PUBLISHED = {"a": 2.7, "b": 2.8, "c": 2.9}


def table(**changes):
    return replace(Table(name="made-up", where="nowhere", shows="nothing", published=PUBLISHED), **changes)


def found(losses, metric="loss", seeds=3):
    rows = [
        ResultRow(
            label=label,
            mixers=["softmax"],
            options={},
            learning_rate=1e-3,
            seeds=len(values),
            points=[
                Point(
                    task="text",
                    options={},
                    value=sum(values) / len(values),
                    low=0,
                    high=9,
                    by_seed=values,
                    examples=10,
                    tokens=8,
                    state_bytes=8,
                    by_distance=[],
                )
            ],
            against=None,
        )
        for label, values in losses.items()
    ]
    return ResultTable(
        experiment="made-up",
        title="",
        axis="",
        across="",
        metric=metric,
        setting=Setting(),
        learning_rates=[1e-3],
        seeds=seeds,
        train=[],
        source="",
        rows=rows,
    )


def test_an_order_that_every_seed_shows_holds():
    """Seeds differ by far more than rows, which are compared seed by seed."""
    own = verdict(table(), found({"a": [1.0, 2.0, 3.0], "b": [1.1, 2.11, 3.1], "c": [1.3, 2.31, 3.3]}))
    assert (own.word, own.pairs, own.agree, own.held, own.reversed) == ("holds", 3, 3, 3, 0)
    assert own.tau == own.low == own.high == 1


def test_a_reversed_order_does_not_hold_and_says_where():
    own = verdict(table(), found({"a": [1.3, 2.31, 3.3], "b": [1.1, 2.11, 3.1], "c": [1.0, 2.0, 3.0]}))
    assert (own.word, own.held, own.reversed, own.tau) == ("does not hold", 0, 3, -1)
    assert ("a", "c") in own.contradicted and "3 are reversed" in own.sentence


def test_what_seeds_do_not_agree_on_is_not_decided():
    own = verdict(table(), found({"a": [1.0, 2.0, 3.0], "b": [1.3, 1.8, 3.1], "c": [1.1, 2.2, 2.9]}))
    assert own.word == "is not decided" and own.held == own.reversed == 0
    assert own.low < own.tau or own.tau < own.high


def test_higher_accuracies_are_better_and_places_come_from_the_first():
    accuracies = found({"a": [0.1, 0.1, 0.12], "b": [0.5, 0.52, 0.5], "c": [0.9, 0.9, 0.91]}, metric="accuracy")
    assert verdict(table(published={"a": 0.2, "b": 0.3, "c": 0.4}), accuracies).word == "holds"
    assert verdict(table(published={"a": 0, "b": 1, "c": 2}, in_words=True), accuracies).word == "does not hold"
    assert verdict(table(published={"c": 0, "b": 1, "a": 2}, in_words=True), accuracies).word == "holds"


def test_equal_places_are_no_pair_and_unfinished_rows_take_no_part():
    losses = {"a": [1.0, 2.0, 3.0], "b": [1.1, 2.1, 3.1], "c": [1.2, 2.2]}
    own = verdict(table(published={"a": 1.0, "b": 1.0, "c": 2.0}), found(losses))
    assert own.pairs == 0 and own.word == "none"


@pytest.mark.parametrize("known", [True, False])
def test_the_point_of_a_table_is_a_difference_with_an_interval(known):
    asked = table(asks=(("a", "b"),), published=PUBLISHED if known else {})
    (answer,) = verdict(asked, found({"a": [1.0, 2.0, 3.0], "b": [1.1, 2.1, 3.11]})).answers
    assert answer.low < answer.difference < answer.high < 0
    assert answer_text(answer).startswith("a − b: -0.103 (") and ("published -0.100" in answer_text(answer)) == known
