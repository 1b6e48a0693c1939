"""The result of a set of runs in a sentence, without overstating it."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.comparison import answers
from maclaurin.report.results import part
from maclaurin.report.runs import Group, SavedRun, comparisons, differences


def headline(groups: Sequence[Group]) -> str:
    ranked = [group for group in groups if group.row.rank is not None]
    if not ranked:
        return "No run has finished yet"
    best, *others = (group.row for group in ranked)
    loss = f"{part(ranked)} loss"
    if not others:
        return f"{best.name}: {loss} {best.loss:.4f}"
    if differences(ranked):
        return f"{best.name} has the lowest {loss}, but the budgets differ"
    if all_three := answers.short([group.row for group in ranked]):
        return all_three
    second = others[0]
    assert second.behind is not None
    if second.behind.level:
        return f"{best.name} and {second.name} are level: {best.loss:.4f} and {second.loss:.4f} {loss}"
    if second.behind.level is None:
        seeds = "with one seed each" if best.seeds == second.seeds == 1 else "one of them with one seed"
        return f"{best.name} has the lowest {loss}, {best.loss:.4f}, {second.behind.nats:.4f} below {second.name}, {seeds}"
    return f"{best.name} wins with a {loss} of {best.loss:.4f}, {second.behind.nats:.4f} below {second.name}"


def lead(groups: Sequence[Group], runs: Sequence[SavedRun]) -> list[str]:
    """The answers, the budget and what it shows, and what is missing."""
    sentences = []
    ranked = [group for group in groups if group.row.rank is not None]
    if ranked:
        sentences += [] if differences(ranked) else answers.sentences([group.row for group in ranked])
        sentences.append(_budget(ranked))
    shows = [comparison.get("shows") for comparison in comparisons(runs).values()]
    sentences += dict.fromkeys(text for text in shows if isinstance(text, str))
    left = [run for run in runs if not run.finished]
    if left:
        count = "One run is" if len(left) == 1 else f"{len(left)} of {len(runs)} runs are"
        sentences.append(f"{count} unfinished or broken and not counted; see the list of runs below.")
    return sentences


def _budget(ranked: Sequence[Group]) -> str:
    differing = differences(ranked)
    if differing:
        return f"These runs differ in {', '.join(differing)}, so their order is not a fair comparison of the mixers."
    recipe, config = ranked[0].recipe, ranked[0].recipe.config()
    tokens = recipe.steps * recipe.tokens_per_step
    counts = [group.row.parameters for group in ranked]
    size = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    each = "The budget of each run" if len(ranked) > 1 else "The budget"
    return (
        f"{each}: {recipe.steps:,} steps, {tokens:,} tokens of {recipe.corpus} ({recipe.tokenizer}) in sequences "
        f"of {recipe.length}, {config.num_hidden_layers} layers of width {config.hidden_size}, {size} parameters outside "
        "the embeddings. Losses are in nats per token; lower is better."
    )
