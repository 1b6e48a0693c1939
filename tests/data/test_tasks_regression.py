"""In-context regression: the law of prompts, checked by the risks that follow from it."""

import pytest
import torch

from maclaurin.data.tasks import Regression


def test_tokens_have_the_law_that_is_stated():
    task = Regression(length=30, dimensions=3, noise=0.1, correlation=0.5, prior=2.0)
    examples = task.sample(20_000, seed=0)
    x, y = examples.inputs[..., :-1].double(), examples.inputs[..., -1].double()
    assert (y[:, -1] == 0).all()
    for points in (x[:, 3], x[:, -1]):  # prompt and query alike
        assert torch.allclose(points.T @ points / len(points), task.covariance(), atol=0.05)
    # E y² = prior·tr Σ + noise
    for answers in (y[:, 5], examples.labels.double()):
        assert (answers**2).mean() == pytest.approx(6.1, rel=0.06)


def test_one_function_a_prompt():
    task = Regression(length=40, dimensions=4, noise=0.0)
    examples = task.sample(50, seed=0)
    x, y = examples.inputs[..., :-1].double(), examples.inputs[..., -1:].double()
    weights = torch.linalg.lstsq(x[:, :-1], y[:, :-1]).solution
    assert torch.allclose((x[:, -1:] @ weights)[:, 0, 0], examples.labels.double(), atol=1e-4)
    assert weights.std() == pytest.approx(0.5, rel=0.15)  # 1/√4


@pytest.mark.parametrize(
    ("task", "risk"),
    [
        (Regression(64, 4, noise=0.0, correlation=0.0, prior=1.0), 0.2899),
        (Regression(1024, 5, noise=0.0, correlation=0.0, prior=1.0), 0.0291),
        (Regression(100, 5), 0.0598),
    ],
)
def test_the_best_linear_attention_has_the_risk_of_theory(task, risk):
    """G = ((1+1/L)Σ + (tr Σ + σ²/τ²)/L·I)⁻¹ predicts x_q·G·mean(y x); its risk is τ²·tr(Σ - ΣGΣ), plus the noise of y_q."""
    count = 20_000 if task.length < 1000 else 4000
    examples = task.sample(count, seed=0)
    d, length, sigma = task.dimensions, task.length, task.covariance()
    prior = task.prior or 1 / d
    identity = torch.eye(d, dtype=torch.float64)
    g = ((1 + 1 / length) * sigma + (sigma.trace() + task.noise / prior) / length * identity).inverse()
    assert (prior * (sigma - sigma @ g @ sigma).trace()).item() == pytest.approx(risk, abs=6e-5)
    x, y = examples.inputs[..., :-1].double(), examples.inputs[..., -1].double()
    mean = torch.einsum("nl,nld->nd", y[:, :-1], x[:, :-1]) / length
    prediction = torch.einsum("nd,de,ne->n", mean, g, x[:, -1])
    error = (prediction - examples.labels.double()) ** 2
    assert error.mean().item() - task.noise == pytest.approx(risk, abs=4 * error.std().item() / count**0.5)


def test_the_published_code_takes_the_root_twice():
    task = Regression(length=20, dimensions=3, correlation=0.5, as_published=True)
    x = task.sample(20_000, seed=0).inputs[..., :-1].double()
    root = torch.linalg.cholesky(task.covariance())
    assert torch.allclose(x[:, 0].T @ x[:, 0] / len(x), root @ root @ root.T @ root.T, atol=0.06)
    assert torch.allclose(x[:, -1].T @ x[:, -1] / len(x), torch.eye(3, dtype=torch.float64), atol=0.05)
