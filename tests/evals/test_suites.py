"""What each suite compares, and what is refused before anything is trained."""

import pytest

from maclaurin.evals.budget import parameters
from maclaurin.evals.cells import Problem, Row
from maclaurin.evals.models import build
from maclaurin.evals.planning import check, plan
from maclaurin.evals.runner import run
from maclaurin.evals.suites import PRESETS, SUITES
from maclaurin.evals.suites.vision import KERNELS
from tests.evals.helpers import experiment


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("suite", SUITES)
def test_every_experiment_can_be_trained(suite, preset):
    if preset == "paper" and suite in ("needle", "vision", "swax", "frontier", "search"):
        with pytest.raises(ValueError, match="no preset 'paper'"):
            plan(suite, preset)
        return
    for planned in plan(suite, preset):
        assert not any("," in label for label in planned.rows)  # `--mixers` has commas between
        assert planned.axis == "" or all(planned.axis in problem.options for problem in planned.test)
        assert set(planned.published) <= {*planned.rows, "softmax", "mamba2", "metala"}
        assert {*planned.against, *planned.against.values()} <= set(planned.rows)
        assert bool(planned.published) == bool(planned.source) or planned.source


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_digits_compare_like_with_like(preset):
    """A kernel divided by its sum and the same one centred are models of the same shape; all rows have equal sizes."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    (digits,) = plan("vision", preset)
    task, settings = digits.train[0].task(), digits.settings()
    for kernel in KERNELS:
        divided, centred = digits.rows[f"linear-{kernel}"], digits.rows[f"centred-{kernel}"]
        assert divided.options["linear"]["feature_map"] == centred.options["inline"]["feature_map"] == kernel
        shapes = [
            {name: tuple(weight.shape) for name, weight in build(row, digits.setting, task).state_dict().items()}
            for row in (divided, centred)
        ]
        assert shapes[0] == shapes[1]
    sizes = [parameters(row, settings[label], task) for label, row in digits.rows.items()]
    assert max(sizes) - min(sizes) < 0.01 * min(sizes)
    assert digits.seeds == 5


def test_tracking_in_the_published_setting_has_the_published_rows():
    """Low rank 32, keys as wide as the heads, and a convolution in front of gla but not of softmax."""
    parity = plan("track", "paper")[0]
    width = parity.setting.width // parity.setting.heads
    of_gla, of_softmax = (parity.rows[name] for name in ("gla-selective-conv", "softmax-selective-published"))
    assert of_gla.options["gla"]["rotary_options"]["rank"] == of_softmax.options["softmax"]["rotary_options"]["rank"] == 32
    assert of_gla.options["gla"]["key_dim"] == width and of_gla.options["gla"]["conv_width"] == 4
    assert "conv_width" not in of_softmax.options["softmax"]


def test_recall_trains_with_more_pairs_than_the_first_order_holds_and_fewer_than_the_second():
    """A head of d channels has d features of first order and d (d + 1) / 2 of second: with as many keys it can be exact."""
    (recall,) = plan("recall")
    channels = recall.setting.width // recall.setting.heads
    hardest = max(problem.options["pairs"] for problem in recall.train)
    assert channels < hardest < channels * (channels + 1) // 2
    assert max(problem.options["pairs"] for problem in recall.test) > hardest


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_rows_of_swax_differ_in_their_windows_alone(preset):
    (swax,) = plan("swax", preset)
    trained = max(problem.options["length"] for problem in swax.train)
    rows = list(swax.rows.values())
    without = [
        {name: {**own, "window": 0} if name == "sliding-window" else own for name, own in row.options.items()}
        for row in rows
    ]
    assert all(options == without[0] for options in without)
    windows = [row.options["sliding-window"]["window"] for row in rows]
    assert windows == [trained // 16, trained // 4, trained, trained, trained // 16]
    assert [row.short_window for row in rows] == [None, None, None, trained // 16, None]
    assert [row.test_window for row in rows] == [None, None, None, None, trained]
    assert max(problem.options["length"] for problem in swax.test) > 2 * trained  # beyond the window in two steps
    assert swax.seeds >= 3 and swax.setting.stop_at is None  # an early end would leave out the schedule's last part


def test_bad_settings_say_what_to_change():
    with pytest.raises(ValueError, match="suite must be one of 'recall'"):
        plan("recal")
    with pytest.raises(ValueError, match="preset must be one of"):
        plan("recall", "fast")
    with pytest.raises(ValueError, match=r"mixers has '2mambo' \(did you mean '2mamba'\?\); it may have .*2mamba"):
        plan("recall", mixers=["2mambo"])
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        plan("recall", seeds=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        plan("recall", steps=0)
    with pytest.raises(ValueError, match="learning_rates must be above 0"):
        plan("recall", learning_rates=[-1.0])
    with pytest.raises(ValueError, match="causal only"):
        plan("vision", mixers=["mlstm"])
    with pytest.raises(ValueError, match="raise length, or lower pairs"):
        check(experiment(test=(Problem("mqar", {"length": 16, "pairs": 8, "vocab_size": 64}),)))
    with pytest.raises(ValueError, match="same vocab_size"):
        check(experiment(test=(Problem("mqar", {"length": 16, "pairs": 2, "vocab_size": 64}),)))
    with pytest.raises(ValueError, match="must divide the 1 layers"):
        check(experiment(rows={"both": Row(("softmax", "linear"))}))
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        run([], "", jobs=0)


def test_any_mixer_can_be_a_row():
    (planned,) = plan("recall", mixers=["rglru", "linear-conv"], seeds=2, steps=7, learning_rates=[1e-4])
    assert planned.rows == {"rglru": Row(("rglru",)), "linear-conv": Row(("linear",), {"linear": {"conv_width": 2}})}
    cells = planned.cells(planned.seeds)
    assert len(cells) == 4 and {cell.setting.steps for cell in cells} == {7}
    assert {cell.learning_rate for cell in cells} == {1e-4}


def test_any_mixer_with_options_is_a_row():
    (experiment, *_) = plan("track", mixers="gla,2mamba:conv_width=4,gate=true,gla-conv:conv_width=3")
    rows = experiment.rows
    assert list(rows) == ["gla", "2mamba:conv_width=4,gate=true", "gla-conv:conv_width=3"]
    assert rows["2mamba:conv_width=4,gate=true"].options == {"2mamba": {"conv_width": 4, "gate": True}}
    assert rows["gla-conv:conv_width=3"].options == {"gla": {"conv_width": 3, "activation": "silu"}}  # beside its own
    for mixers, sentence in (
        ("2mambo", r"mixers has '2mambo' \(did you mean '2mamba'\?\)"),
        ("gla:conv_widht=4", r"no option 'conv_widht' \(did you mean 'conv_width'\?\)"),
        ("conv_width=4", "mixers must begin with a name"),
    ):
        with pytest.raises(ValueError, match=sentence):
            plan("track", mixers=mixers)
