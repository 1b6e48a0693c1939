"""The recurrent step as an ONNX model, run without PyTorch."""

import pytest
import torch

import maclaurin
from maclaurin.mixers.onnx import export_step

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

FOLDED = {"fold_at": 1, "fold_every": 1}


@pytest.mark.parametrize(("name", "options"), [("2mamba", FOLDED), ("mamba2", {}), ("gla", {}), ("gated-delta", {})])
def test_the_exported_step_is_the_mixer(name, options, tmp_path):
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer(name, 16, 2, **options)
    x = torch.randn(1, 6, 16)
    start = export_step(mixer, tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    state, outputs = {name: tensor.numpy() for name, tensor in start.items()}, []
    for token in x.split(1, dim=1):
        y, *after = session.run(None, {"x": token.numpy(), **state})
        state = dict(zip(state, after, strict=True))
        outputs.append(torch.from_numpy(y))
    with torch.no_grad():
        expected, _ = mixer(x)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=1e-4, atol=1e-4)


def test_a_state_that_grows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'softmax', whose state grows"):
        export_step(maclaurin.build_mixer("softmax", 16, 2), tmp_path / "step.onnx")
