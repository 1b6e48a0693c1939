"""The result of a set of runs in a sentence, without overstating it."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.report.runs import Group, SavedRun, differences
from maclaurin.training.statistics import gap


def headline(groups: Sequence[Group]) -> str:
    ranked = [group for group in groups if group.row.rank is not None]
    if not ranked:
        return "No run has finished yet"
    best, *others = (group.row for group in ranked)
    if not others:
        return f"{best.name}: validation loss {best.loss:.4f}"
    if differences(ranked):
        return f"{best.name} has the lowest validation loss, but the budgets differ"
    second = others[0]
    ahead = gap(best, second)
    if ahead.within_chance:
        return f"{best.name} and {second.name} are level: {best.loss:.4f} and {second.loss:.4f} validation loss"
    if ahead.within_chance is None:
        seeds = "with one seed each" if best.seeds == second.seeds == 1 else "one of them with one seed"
        return f"{best.name} has the lowest validation loss, {best.loss:.4f}, {ahead.nats:.4f} below {second.name}, {seeds}"
    return f"{best.name} wins with a validation loss of {best.loss:.4f}, {ahead.nats:.4f} below {second.name}"


def lead(groups: Sequence[Group], runs: Sequence[SavedRun]) -> list[str]:
    """The gap in context, the budget, and what is missing."""
    sentences = []
    ranked = [group for group in groups if group.row.rank is not None]
    if ranked:
        sentences += _gaps(ranked)
        sentences.append(_budget(ranked))
    left = [run for run in runs if not run.finished]
    if left:
        count = "One run is" if len(left) == 1 else f"{len(left)} of {len(runs)} runs are"
        sentences.append(f"{count} unfinished or broken and not counted; see the list of runs below.")
    return sentences


def _gaps(ranked: Sequence[Group]) -> list[str]:
    if len(ranked) == 1:
        return []
    best, second, last = ranked[0].row, ranked[1].row, ranked[-1].row
    ahead = gap(best, second)
    sentence = f"The best of {len(ranked)} is {best.name}; {second.name} follows {ahead.nats:.4f} nats per token behind"
    sentence += f" ({ahead.share:.1%})" if ahead.share >= 5e-4 else ""
    sentence += "." if last is second else f", {last.name} is last, {gap(best, last).nats:.4f} behind."
    seeds = min(best.seeds, second.seeds)
    if ahead.within_chance is None:
        which = "Both have" if best.seeds == second.seeds == 1 else "One of the first two has"
        chance = f"{which} a single seed, so it is not known how much of their gap is chance."
    elif ahead.within_chance:
        chance = f"The gap between the first two is within the spread of their {seeds} seeds: call it a tie."
    else:
        chance = f"The gap between the first two is larger than the spread of their {seeds} seeds."
    return [f"{sentence} {chance}"]


def _budget(ranked: Sequence[Group]) -> str:
    differing = differences(ranked)
    if differing:
        return f"These runs differ in {', '.join(differing)}, so their order is not a fair comparison of the mixers."
    recipe = ranked[0].recipe
    tokens = recipe.steps * recipe.tokens_per_step
    counts = [group.row.parameters for group in ranked]
    size = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    each = "The budget of each run" if len(ranked) > 1 else "The budget"
    return (
        f"{each}: {recipe.steps:,} steps, {tokens:,} tokens of {recipe.corpus} ({recipe.tokenizer}) in sequences "
        f"of {recipe.length}, {recipe.size} model with {size} parameters outside the embeddings. Losses are in nats per "
        "token; lower is better."
    )
