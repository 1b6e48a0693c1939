"""Students in models of transformers: exact where they keep softmax, one model in every form, and loadable as any other."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForSequenceClassification

from maclaurin.convert import linearise
from maclaurin.models.linearised.classes import attention_modules
from maclaurin.models.linearised.students import FEATURE_MAPS, NAMES, STUDENTS, Shape, build_student
from tests.convert.conftest import DECODERS, ENCODERS, build

FEATURES = {"num_features": 16}
AUTO = {"bert-classes": AutoModelForSequenceClassification, "vit": AutoModelForImageClassification}


def inputs(name, left=False):
    """Two sequences of 11 tokens, the first with 4 of padding; or two images."""
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    ids = torch.randint(3, 60, (2, 11), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 7:] = 0
    return {"input_ids": ids, "attention_mask": mask.flip(1) if left else mask}


def real(outputs, batch):
    """Of the first output, what belongs to real tokens."""
    values = outputs[0]
    return values if values.dim() == 2 or "attention_mask" not in batch else values[batch["attention_mask"].bool()]


@torch.no_grad()
@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS, "vit"])
def test_layers_that_keep_softmax_change_nothing(name):
    model = build(name).eval()
    batch = inputs(name, left=name in DECODERS)
    same = linearise(model, ["softmax"] * 2)
    torch.testing.assert_close(real(same(**batch), batch), real(model(**batch), batch), atol=1e-5, rtol=1e-5)
    other = linearise(model, ["taylor", "softmax"])
    assert (real(other(**batch), batch) - real(model(**batch), batch)).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("name", ["bert-classes", "vit", "qwen3"])
def test_saved_models_load_with_the_auto_classes(name, student, tmp_path):
    model = linearise(build(name).eval(), [student, "softmax"], FEATURES)
    batch = inputs(name)
    model.save_pretrained(tmp_path)
    loaded = AUTO.get(name, AutoModelForCausalLM).from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    torch.testing.assert_close(loaded(**batch)[0], model(**batch)[0])


def test_a_saved_model_without_its_students_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    linearise(build("bert"), ["taylor"] * 2).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if ".student." not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="students"):
        AutoModel.from_pretrained(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("student", [*STUDENTS, "sliding-window", "windowed hedgehog"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
def test_generation_with_states_is_generation_without(name, student):
    options = FEATURES | ({"window": 4} if "wind" in student else {})
    model = linearise(build(name).eval(), [student.removeprefix("windowed ")] * 2, options)
    model.generation_config.eos_token_id = None  # all 6 tokens, whichever they are
    batch = inputs(name, left=True)
    written = model.generate(**batch, max_new_tokens=6, do_sample=False)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    for _ in range(6):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        mask = F.pad(mask, (0, 1), value=1)
    assert torch.equal(written, ids)


@torch.no_grad()
@pytest.mark.parametrize("student", [*STUDENTS, "softmax"])
def test_only_softmax_needs_a_state_that_grows(student):
    model = linearise(build("llama").eval(), [student] * 2, FEATURES)
    sizes = []
    cache = None
    for length in (96, 1, 31, 32, 32):  # whole rounds of folding
        ids = torch.randint(3, 60, (1, length))
        cache = model(ids, past_key_values=cache, use_cache=True).past_key_values
        sizes.append(cache.nbytes)
    assert (sizes[-1] == sizes[-2]) == (student != "softmax")


@torch.no_grad()
@pytest.mark.parametrize("student", [name for name in NAMES if name != "sliding-window"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_padding_and_neighbours_have_no_influence(name, student):
    model = linearise(build(name).eval(), [student] * 2, FEATURES)
    batch = inputs(name)
    together = model(**batch)[0]
    alone = model(input_ids=batch["input_ids"][:1, :7])[0]
    torch.testing.assert_close(together[:1, :7], alone, atol=2e-5, rtol=2e-5)


def weights_of(student, q, k):
    """The formulas of the module's header, in float64."""
    maps = [layer.double() for layer in (student.q_map, student.k_map)]
    q, k = (torch.einsum("thk,hmk->thm", x, layer.weight) + layer.bias for x, layer in zip((q, k), maps, strict=True))
    score = torch.einsum("thm,shm->hts", q, k.repeat_interleave(2, 1))
    return 1 + score + score.square() / 2 if student.order == (0, 1, 2) else score.square()


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["taylor", "2mamba"])
def test_second_order_is_its_formula(name, causal):
    torch.manual_seed(0)
    student = build_student(name, Shape(d_model=12, num_heads=4, num_kv_heads=2, head_dim=6, causal=causal)).double()
    for parameter in student.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    q, k, v = (torch.randn(1, 9, heads, 6, dtype=torch.float64) for heads in (4, 2, 2))
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    weight = weights_of(student, q[0], k[0])
    if student.decay_proj is not None:
        a = -F.softplus(student.decay_proj(x[0])).T.repeat_interleave(2, 0)
        steps = torch.arange(9)
        for t in range(9):
            for s in range(9):
                between = (steps > s) & (steps <= t) if s <= t else (steps >= t) & (steps < s)
                weight[:, t, s] *= a[:, between].sum(-1).exp()
    if causal:
        weight = weight.tril()
    expected = torch.einsum("hts,shv->thv", weight / weight.sum(-1, keepdim=True), v[0].repeat_interleave(2, 1))
    torch.testing.assert_close(student(q, k, v, x)[0][0], expected)


def test_second_order_starts_at_the_score_of_the_source():
    """taylor at 1 + x + x²/2, 2mamba at (1 + x/2)², both e^x to first order, and with a decay that forgets nothing."""
    shape = Shape(d_model=12, num_heads=1, num_kv_heads=1, head_dim=4, causal=False)
    q, k = (torch.randn(1, 5, 1, 4, dtype=torch.float64) for _ in range(2))
    x = torch.einsum("bthk,bshk->ts", q, k) / math.sqrt(4)
    for name, expected in (("taylor", 1 + x + x**2 / 2), ("2mamba", (1 + x / 2) ** 2)):
        student = build_student(name, shape).double()
        got = torch.einsum("bthm,bshm->ts", student.q_map(q), student.k_map(k))
        got = 1 + got + got**2 / 2 if name == "taylor" else got**2
        torch.testing.assert_close(got, expected)
    assert F.softplus(student.decay_proj(torch.randn(3, 12, dtype=torch.float64))).max() < 1e-3


@pytest.mark.parametrize("name", STUDENTS)
def test_students_have_one_budget_of_features(name):
    student = build_student(name, Shape(d_model=384, num_heads=12, num_kv_heads=12, head_dim=32, causal=False))
    assert student.num_features == (561 if name not in FEATURE_MAPS else 560)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "nothing"}, "student"),
        ({"name": "luna", "num_features": 20}, "multiple"),
        ({"name": "taylor", "window": 4}, "decoder"),
        ({"name": "sliding-window"}, "window"),
    ],
)
def test_impossible_students_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        build_student(shape=Shape(d_model=12, num_heads=2, num_kv_heads=2, head_dim=6, causal=False), **arguments)


def test_a_layer_a_student():
    with pytest.raises(ValueError, match="each of the 2 layers"):
        linearise(build("bert"), ["taylor"])


@torch.no_grad()
def test_masks_and_caches_that_cannot_be_kept_are_refused():
    encoder, decoder = linearise(build("bert").eval(), ["taylor"] * 2), linearise(build("llama").eval(), ["taylor"] * 2)
    ids = inputs("bert")["input_ids"]
    with pytest.raises(ValueError, match="attention_mask"):
        encoder(ids, attention_mask=torch.ones(2, 1, 11, 11))
    with pytest.raises(ValueError, match="several documents"):
        decoder(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]] * 2), use_cache=False)
    from transformers import DynamicCache

    with pytest.raises(TypeError, match="StateCache"):
        decoder(ids, past_key_values=DynamicCache())


def test_gradients_reach_every_parameter():
    for name in ("bert", "llama"):
        for student in STUDENTS:
            model = linearise(build(name), [student] * 2, FEATURES)
            model(**inputs(name))[0].square().sum().backward()
            for layer in attention_modules(model):
                without = [key for key, parameter in layer.student.named_parameters() if parameter.grad is None]
                assert not without, (name, student, without)
