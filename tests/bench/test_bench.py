"""The benchmarks' own sums: what is counted, what is compared, and what the page says of it."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from maclaurin import bench
from maclaurin.bench import attention, gpu, model, peers, roofline, scale, training, tune, whole
from maclaurin.bench.attention import AttentionRow, OpTime
from maclaurin.bench.decode import DecodeRow
from maclaurin.bench.page import page
from maclaurin.bench.results import Results, Setting
from maclaurin.common.timing import Timing
from maclaurin.ops import native
from maclaurin.ops.crossover import DIRECT_QUERIES, Line, name_here
from maclaurin.training import Recipe, train

SETTING = Setting("2", "3", 2, "a CPU", None, 0.5)


def test_useful_operations_are_those_of_the_definition():
    """2 d(d+1)/2 (d+1) multiply-adds a token and head through the memory, and the pairs inside a chunk of 128."""
    pairs = sum(range(1, 129)) / 128 * (64 + 65)
    assert attention.useful_operations(1, 1, backward=False) == pytest.approx(2 * (2 * 2080 * 65 + pairs))
    assert attention.useful_operations(3, 10, backward=True) == 30 * 3.5 * attention.useful_operations(1, 1, backward=False)


def test_the_peer_is_causal_softmax():
    q, k, v = torch.randn(3, 1, 9, 2, 4)
    score = torch.einsum("bthk,bshk->bhts", q, k) / 2
    weight = score.masked_fill(~torch.ones(9, 9).tril().bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(attention.causal_softmax(q, k, v), torch.einsum("bhts,bshv->bthv", weight, v))


def test_transformers_mamba2_gives_the_same_numbers(monkeypatch):
    monkeypatch.setattr(peers, "T", 40)
    with torch.no_grad():
        ours, theirs = peers._mamba2()
        torch.testing.assert_close(ours(), theirs(), atol=1e-4, rtol=1e-3)


def test_an_unknown_part_is_one_sentence():
    with pytest.raises(ValueError, match="part must be one of 'limits'"):
        bench.run(["speed"], threads=1, long=False, console=Console(file=io.StringIO()))


def test_nothing_is_measured_of_a_wrong_result(monkeypatch):
    def wrong(*args, **kwargs):
        return torch.zeros(1, 300, 2, 16), None

    wrong.__name__ = "power_attention"
    monkeypatch.setattr(bench, "power_attention", wrong)
    with pytest.raises(ValueError, match="power_attention is wrong here"):
        bench.run(["limits"], threads=1, long=False, console=Console(file=io.StringIO()))


def test_the_model_of_many_gpus_is_that_of_the_docs():
    rows = {(row.gpus, row.layout): row for row in scale.run(Console(file=io.StringIO()), long=False)}
    chain, gather = rows[8, "1M tokens over 8, chain"], rows[64, "1M tokens over 64, gather"]
    assert (round(chain.step_s, 2), round(gather.exchange_s, 3)) == (2.29, 0.884)
    assert round(rows[512, "8k tokens, sharded"].tokens_per_s / 1e6) == 37
    for over in (8, 64):  # the state of a slice does not grow with it, keys and values of a ring do
        chained, ring = (rows[64, f"1M tokens over {over}, {how}"] for how in ("chain", "softmax"))
        assert chained.exchange_s < ring.exchange_s / 100


def test_the_roofline_is_that_of_the_docs():
    """Products per token and head at chunks of 512, and where states and FlashAttention take equal time."""
    forward, backward = roofline.chunked(roofline.D)
    assert round(forward.flops / 1000) == 754 and round(backward.flops / 1000) == 2351
    a100, h100 = roofline.SHARES["A100"][1], roofline.SHARES["H100"][0]
    assert [round(roofline.crossover(*one) / 100) for one in (("A100", a100), ("H100", h100))] == [87, 80]
    rows = roofline.run(Console(file=io.StringIO()), long=False)
    assert all(row.ratio < 1 for row in rows if row.T <= 2048) and all(row.ratio > 5 for row in rows if row.T == 65536)
    made = page(Results(SETTING, roofline=rows))
    assert [chart.key for chart in made.charts()] == ["roofline"]


@pytest.mark.parametrize("backward", [False, True])
def test_contenders_on_a_gpu_compute_and_only_peers_may_fail(backward):
    """On the CPU, with a timer that runs them once."""

    def fails(*_):
        raise RuntimeError("not on this GPU")

    ours = {name: one for name, one in gpu.contenders().items() if one.ours}
    found = ours | {"SDPA": gpu.contenders()["SDPA"], "peer": gpu.Contender(fails)}

    def once(run):
        run()
        return Timing(1.0, 1.0, 1.0)

    row = gpu.measure(found, 24, backward, torch.device("cpu"), once)
    assert row.ms == dict.fromkeys(found, 1.0) | {"peer": None}
    assert ours.keys() == {"second order", "second order, direct", "second order, chunked", "first order"}
    with pytest.raises(RuntimeError, match="not on this GPU"):
        gpu.measure({"second order": gpu.Contender(fails, ours=True)}, 24, backward, torch.device("cpu"), once)


def test_peers_on_a_gpu_are_those_that_are_installed(monkeypatch):
    for there, names in ((True, {"fla", "retention", "mamba-ssm"}), (False, set())):
        monkeypatch.setattr(gpu, "find_spec", lambda package, there=there: object() if there else None)
        assert {"fla", "retention", "mamba-ssm"} & set(gpu.contenders()) == names
    with pytest.raises(ValueError, match="the part gpu needs a CUDA or ROCm GPU"):
        gpu.run(Console(file=io.StringIO()), long=False)


def test_a_line_goes_through_both_crossovers():
    line = Line.through({528: 1500.0, 2080: 4000.0})
    assert line.start + line.per_feature * 528 == pytest.approx(1500, abs=1)
    assert line.start + line.per_feature * 2080 == pytest.approx(4000, abs=1)


def test_every_crossover_is_looked_for_under_the_name_that_ops_know(monkeypatch):
    monkeypatch.setattr(tune, "_direct_wins", lambda attend, K, V, T, backward: T <= 2 * math.sqrt(K * V))
    heard = []
    lines = tune.measure(heard.append)
    decays = {name_here("native"), name_here("native decay")} if native.available() else {"torch decay"}
    assert lines.keys() == {"torch", "one state", *decays} <= DIRECT_QUERIES.keys()
    assert len(heard) == 2 * len(lines)
    first_order = lines["one state"]  # to the quarter of an octave to which it is found
    assert first_order.start + first_order.per_feature * 100 == pytest.approx(200, rel=0.2)


@pytest.mark.parametrize("race", [*tune._races()], ids=lambda race: race.name)
def test_both_sides_of_a_race_compute_the_same(race):
    q, k, v = torch.randn(3, 1, 20, 2, 8, generator=torch.Generator().manual_seed(0))
    log_decay = -torch.rand(1, 20, 2, generator=torch.Generator().manual_seed(1))
    direct, memory = (race.attend(q, k, v, log_decay, form) for form in ("parallel", "chunked"))
    torch.testing.assert_close(direct, memory, rtol=1e-3, atol=1e-4)


def test_a_twin_takes_the_batch_of_every_step_of_a_run(tmp_path, monkeypatch):
    """Both are timed from the second step on: nothing says when the first began."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "songs.jsonl").write_text('{"text": "green bottles hanging on the wall"}\n' * 200)
    twin = training._Twin()
    recipe = Recipe(output=str(tmp_path / "run"), corpus=str(tmp_path), length=32, batch_size=2, steps=4, eval_rows=1)
    train(recipe, callbacks=[twin])
    assert len(twin.steps) == 3 and all(seconds > 0 for step in twin.steps for seconds in step)
    assert twin.batch["input_ids"].numel() == 2 * 32  # of training, where evaluation has 32


TINY = whole.Shape("tiny", 2, 64)


@pytest.mark.parametrize("mixer", model.Models().mixers)
def test_models_beside_llama_have_as_many_parameters(mixer):
    ours, theirs = (sum(x.numel() for x in whole.build(name, TINY).parameters()) for name in (mixer, whole.LLAMA))
    assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("mixer", [*model.Models().mixers, whole.LLAMA])
def test_a_filled_cache_is_one_that_a_model_continues(mixer):
    """It has the shapes of a cache that has seen so many tokens, and the outputs of the next ones are finite."""
    built = whole.build(mixer, TINY).eval()
    decoding = whole.Decoding(built, 300, 2)
    decoding()
    assert decoding.cache.get_seq_length() == 299 + whole.STEPS
    ids = torch.zeros(2, 299, dtype=torch.long)
    with torch.no_grad():
        seen = built(input_ids=ids, use_cache=True).past_key_values
        filled = whole._cache(built, 299, 2)
        assert built(input_ids=ids[:, :1], past_key_values=filled).logits.isfinite().all()
    if mixer != whole.LLAMA:
        shapes = [
            [x.shape for layer in cache.layers for x in layer.state.tensors().values()]
            for cache in (seen, whole._cache(built, 299, 2))
        ]
        assert shapes[0] == shapes[1]


def test_a_training_step_learns():
    step = whole.TrainingStep(whole.build("2mamba", TINY), 32)
    before = step.model.lm_head.weight.detach().clone()
    step()
    assert not step.model.lm_head.weight.equal(before)


def test_the_time_of_all_layers_is_on_the_line_through_few(monkeypatch):
    """With costs that are such a line, of a pattern of two layers, of Llama and of their peaks."""
    monkeypatch.setattr(whole, "apart", lambda _, shape, job: [whole.Spent(5.0 + 3 * shape.layers, 100 + 7 * shape.layers)])
    for name in ("2mamba", "2mamba+sliding-window", whole.LLAMA):
        assert whole.by_layers(name, whole.Shape("small"), whole.Job("training", 8192, 1)) == whole.Spent(65.0, 240)


def test_rows_outlive_an_interruption_and_llama_is_measured_once(monkeypatch, tmp_path):
    """The second run measures what the first one did not reach; one of other models refuses its rows."""
    calls, most = [], 3

    def spent(name, shape, job):
        if len(calls) == most:
            raise KeyboardInterrupt
        calls.append((name, job.tokens))
        return whole.Spent(2.0 if name == whole.LLAMA else 1.0, 1)

    def measured(shape, *, resume=False):
        models = model.Models(shape, ("2mamba", "mamba2"), (8192, 32768), ())
        return model.run(Console(quiet=True), long=False, models=models, kept=tmp_path / "model.json", resume=resume)

    monkeypatch.setattr(model, "by_layers", spent)
    with pytest.raises(KeyboardInterrupt):
        measured(TINY)
    most = 9
    rows = measured(TINY, resume=True)
    assert [(row.mixer, row.tokens, row.ratio) for row in rows] == [
        (mixer, T, 2.0) for mixer in ("2mamba", "mamba2") for T in (8192, 32768)
    ]
    others = [("2mamba", 32768), (whole.LLAMA, 32768), ("mamba2", 8192), ("mamba2", 32768)]
    assert calls == [("2mamba", 8192), (whole.LLAMA, 8192), others[0], *others]  # what was interrupted, again
    with pytest.raises(ValueError, match="has rows with shape"):
        measured(whole.Shape("tiny", 3, 64), resume=True)


def test_the_file_holds_what_was_measured_and_the_page_a_chart_of_every_part():
    def row(T, backward):
        op = OpTime(T / 100, (T / 200, T / 50), T / 1000, {"auto": T / 100})
        return AttentionRow(4, T, backward, 1.0, op, op, 0.5)

    rows = tuple(row(T, backward) for T in (1024, 8192) for backward in (False, True))
    steps = (DecodeRow(1024, 1.0, 0.5, 2.0, {}, 1), DecodeRow(4096, 4.0, 0.5, 8.0, {"2mamba": 0.1}, 1))
    results = Results(SETTING, attention=rows, decode=steps)
    values = json.loads(json.dumps(results.to_json()))
    assert values.keys() == {"setting", "attention", "decode"} and values["attention"][0]["second order"]["ratio"] == 1.024
    assert Results.from_json(values) == results
    made = page(results)
    assert [chart.key for chart in made.charts()] == ["attention-forward", "attention-forward-and-backward", "decode"]
    assert made.headline == "Second order takes 1/8.2 of softmax’s time at 8,192 tokens, forward"
