"""Softmax as linear attention for long prompts (Boursier and Boyer, arXiv 2512.11784): its limit and its error."""

from __future__ import annotations

from maclaurin.common.arguments import at_least_one
from maclaurin.lab.experiments.draws import generator
from maclaurin.lab.experiments.long_prompt import finite, heads, layer, limits, queries, regression, training
from maclaurin.lab.experiments.long_prompt.linearisation import linearisation_report
from maclaurin.lab.experiments.long_prompt.regression import Regression, icl_regression
from maclaurin.lab.result import Result

__all__ = ["Regression", "icl_regression", "linearisation_report", "long_prompt"]

TITLE = "Softmax becomes linear as the prompt grows: how fast, and when it breaks"
NOTES = (
    "The limit is linear for Gaussian tokens only: other laws have a gain that depends on the query.",
    "At s² = .25 ln L the delta method over-estimates the error by 16 % of it at L = 16 and by 8 % at L = 1024, and by more "
    "beyond: every L_eps there is conservative.",
    "Exponents above λ = 1/2 are a heuristic with logarithmic corrections: their order is tested, not their value.",
    "Training transfers the risk, not the parameters: at finite length they drift along the set of zero infinite risk.",
)
ABOUT_LAYER = (
    "One seed; the authors take 300,000 steps, and the figures of their section 6 were not seen.",
    "From PyTorch's initial weights logits are small, where softmax is near linear attention at any length.",
)
ABOUT_HEADS = (
    "A prompt's tokens are taken as draws from one law; tokens of a text are not independent, so lengths are a guide.",
    "λ comes from the queries given and is too large where they are few for their channels.",
)


def long_prompt(
    *,
    quick: bool = False,
    seed: int = 0,
    tokens: str = "gaussian",
    as_published: bool = False,
    eps: float = 0.1,
    layer_steps: int | None = None,
    checkpoint: str | None = None,
    text: str | None = None,
    context: int | None = None,
) -> Result:
    """Softmax over a long prompt against its affine limit and linear attention; with a checkpoint, a report on its heads.

    tokens: law of the prompts' tokens: gaussian, or rademacher, uniform, laplace, for which claims must fail.
    as_published: in-context regression with the authors' code's covariances: prompts RRRᵀRᵀ, queries I.
    eps: relative accuracy to which a head is called linear.
    layer_steps: only the paper's layer (Q, K, V of 6x6), for so many of its 300,000 steps; quick: 3 of its 19 lengths.
    checkpoint: folder of a trained model: only the report on its softmax layers.
    text: what it reads, a file, folder or corpus; by default validation text of its own or of the standard library.
    context: tokens of a prompt for the checkpoint; by default what the model was made for, at most 960.
    """
    if checkpoint is not None:
        reports = heads.checkpoint_reports(checkpoint, text, context, eps, seed)
        length = next(iter(reports.values())).length
        read = {"checkpoint": checkpoint, "text": text or "its own", "context": length, "eps": eps, "seed": seed}
        title = f"At which prompt length are the heads of {checkpoint} linear?"
        return Result.of("long-prompt", title, read, [heads.checkpoint_part(reports)], ABOUT_HEADS)
    if layer_steps is not None:
        at_least_one("layer_steps", layer_steps)
        lengths = layer.LENGTHS[::9] if quick else layer.LENGTHS
        chosen = {"steps": layer_steps, "of": layer.STEPS, "as_published": as_published, "quick": quick, "seed": seed}
        trained = layer.part(lengths, layer_steps, seed, as_published)
        title = "The paper's layer, trained on prompts of finite length"
        return Result.of("long-prompt-layer", title, chosen, [trained], ABOUT_LAYER)
    long = finite.LONG * (1 if quick else 4)  # drawn at each of the long lengths
    prompts, drawn = (1000, 2**21) if quick else (4000, 2**24)  # drawn: tokens of the regression, at each length
    parts = [
        limits.part(prompts, generator(seed, 1), tokens),
        finite.part(finite.run(long, generator(seed, 2), tokens), generator(seed, 7), tokens),
        finite.length_part(prompts, generator(seed, 3)),
        queries.part(long // 2, generator(seed, 4)),
        regression.part(drawn, generator(seed, 5), seed, as_published),
        training.part(drawn, generator(seed, 6), longest=64 if quick else 1024),
        heads.known_part(generator(seed, 8), eps),
    ]
    settings = {"tokens": tokens, "as_published": as_published, "eps": eps, "longest prompt": finite.LENGTHS[-1]}
    settings |= {"prompts of it": long // finite.LENGTHS[-1], "quick": quick, "seed": seed}
    return Result.of("long-prompt", TITLE, settings, parts, NOTES)
