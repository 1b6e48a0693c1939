"""The three questions of a comparison, answered in words: which models text best, recalls best, and costs least."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.common.intervals import STUDENT
from maclaurin.common.sizes import size_text
from maclaurin.training.statistics import Difference, Standing, difference, level


def short(rows: Sequence[Standing]) -> str:
    """All three in a line; "" where recall and costs were not measured."""
    done = [row for row in rows if row.loss is not None]
    recalled, cost = [row for row in done if row.recall], [row for row in done if row.decode_ms is not None]
    if not (len(done) > 1 and recalled and cost):
        return ""
    ahead, equals = _best_recall(recalled)
    smallest = min(cost, key=lambda row: row.state_bytes_at_8k)
    return f"Text: {_with(done[0], level(done))}. Recall: {_with(ahead, equals)}. Smallest state: {smallest.name}"


def _with(best: Standing, equals: Sequence[Standing]) -> str:
    return f"{best.name} (level: {_names(equals)})" if equals else best.name


def sentences(rows: Sequence[Standing]) -> list[str]:
    """Each question that was measured, and how far the answer can be trusted."""
    done = [row for row in rows if row.loss is not None]
    if len(done) < 2:
        return []
    return [text for text in (_text(done), _constant(done), _recall(done), _cost(done), seeds_note(done)) if text]


def _text(done: Sequence[Standing]) -> str:
    best, equals = done[0], level(done)
    sentence = f"Text: {best.name} has the lowest loss, {best.loss:.4f} nats per token"
    if equals:
        differences = joined([f"{row.name} ({_between(row.behind)})" for row in equals])
        return f"{sentence}; level with it, since the 95 % interval of the difference has 0: {differences}."
    second = done[1]
    if second.behind is None or second.behind.level is None:
        return f"{sentence}, {second.name} follows; with one seed each it is not known how much of that is chance."
    return f"{sentence}; no other is level with it: {second.name}, the next, is {_between(second.behind)} behind."


def _constant(done: Sequence[Standing]) -> str:
    """Of the rows whose state does not grow, the best, and the best of those that recall as well as one whose state does."""
    constant, growing = ([row for row in done if row.state_grows is grows] for grows in (False, True))
    if not (constant and growing):
        return ""
    best = constant[0]
    sentence = f"Constant state: {best.name} has the lowest loss of those whose state does not grow; {_to(best, growing)}."
    recalled = [row.recall for row in growing if row.recall]
    if not recalled:
        return sentence
    least, pairs = min(recall.accuracy[-1] for recall in recalled), recalled[0].pairs[-1]
    able = [row for row in constant if row.recall and row.recall.high[-1] >= least]
    if not able:
        return f"{sentence} None of them recalls {pairs} pairs as well as those whose state grows."
    if able[0] is best:
        return f"{sentence} It recalls {pairs} pairs as well as they do."
    return (
        f"{sentence} Of those that also recall {pairs} pairs as well as one whose state grows, {able[0].name} has the "
        f"lowest; {_to(able[0], growing)}."
    )


def _to(row: Standing, others: Sequence[Standing]) -> str:
    found = [own for other in others if (own := difference(row, other)) is not None]
    return "against " + joined([f"{own.to} {_between(own)}{_verdict(own)}" for own in found])


def _verdict(found: Difference) -> str:
    if found.level is None:
        return ""
    return " (level)" if found.level else " (behind)" if found.nats > 0 else " (ahead)"


def _recall(done: Sequence[Standing]) -> str:
    rows = [row for row in done if row.recall]
    if not rows:
        return ""
    best, equals = _best_recall(rows)
    assert best.recall is not None
    pairs, accuracy = best.recall.pairs[-1], best.recall.accuracy[-1]
    sentence = f"Recall: {best.name} answers {accuracy:.3f} of {pairs} pairs"
    sentence += f"; level with it: {_names(equals)}" if equals else "; no other is level with it"
    guessing = [row for row in rows if row.recall and row.recall.low[-1] <= row.recall.chance[-1]]
    unlearned = f" {_names(guessing)} did no better than guessing: not learned in these steps." if guessing else ""
    return f"{sentence}.{unlearned}"


def _cost(done: Sequence[Standing]) -> str:
    smallest = min(done, key=lambda row: row.state_bytes_at_8k)
    parts = [f"{smallest.name} has the smallest state at 8k tokens, {size_text(smallest.state_bytes_at_8k)}"]
    timed = [row for row in done if row.decode_ms is not None]
    if timed:
        quickest = min(timed, key=lambda row: row.decode_ms or 0)
        parts.append(f"{quickest.name} decodes fastest after 16k tokens, {quickest.decode_ms:.2f} ms")
    speeds = [row for row in done if row.tokens_per_second is not None]
    if speeds:
        fastest = max(speeds, key=lambda row: row.tokens_per_second or 0)
        parts.append(f"{fastest.name} trains fastest, {fastest.tokens_per_second:,.0f} tokens/s")
    return f"Cost: {'; '.join(parts)}."


def seeds_note(done: Sequence[Standing]) -> str:
    """What so few seeds can show."""
    seeds = min(row.seeds for row in done)
    if seeds == 1:
        return "One seed says nothing about chance: no difference here has an interval."
    if seeds > 5:
        return ""
    return (
        f"With {seeds} seeds a 95 % interval reaches {STUDENT[seeds - 2]:.1f} standard errors to each side: “level” means "
        "that these seeds cannot tell two rows apart, not that they are equal."
    )


def _best_recall(rows: Sequence[Standing]) -> tuple[Standing, list[Standing]]:
    """The row that recalls the most pairs best, and those whose interval reaches its accuracy."""
    best = max(rows, key=lambda row: (row.recall.accuracy[-1], row.recall.mean) if row.recall else (0.0, 0.0))
    assert best.recall is not None
    low = best.recall.low[-1]
    return best, [row for row in rows if row is not best and row.recall and row.recall.high[-1] >= low]


def _between(found: Difference | None) -> str:
    assert found is not None
    return f"{found.nats:+.4f}" + ("" if found.low is None else f", {found.low:+.4f} to {found.high:+.4f}")


def _names(rows: Sequence[Standing]) -> str:
    return joined([row.name for row in rows])


def joined(texts: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(part for part in (", ".join(texts[:-1]), *texts[-1:]) if part)
