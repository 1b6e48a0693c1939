"""A file that is read as a state may come from anybody: a state, or one sentence with the file's name."""

import copy
import json
import random
import struct

import pytest
import torch
from safetensors.torch import save_file

import maclaurin
from maclaurin.ops import PowerState, State
from tests.ops.helpers import BY_NAME, Sizes, state_of

GARBAGE = (None, True, -1, 0.5, 2**63, 10**400, "", "keys", "TokenState", "MixerState", [], [1], {}, {"class": "ConvState"})


def folded_state():
    return state_of(BY_NAME["power-2-decay"], BY_NAME["power-2-decay"].draw(Sizes(B=3, T=11)))


def test_files_that_are_no_state_are_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"nothing of the kind, but long enough to have a header")
    with pytest.raises(ValueError, match="text is not a saved state"):
        State.load(tmp_path / "text")
    folded_state().save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="half is not a saved state"):
        State.load(tmp_path / "half")
    save_file({"x": torch.zeros(1)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="weights is not a saved state: it has no 'state' entry"):
        State.load(tmp_path / "weights")
    described = json.dumps({"class": "Pickle", "states": {}, "tensors": ["x"]})
    save_file({"x": torch.zeros(1)}, tmp_path / "unknown", metadata={"state": described})
    with pytest.raises(ValueError, match="unknown class 'Pickle'"):
        State.load(tmp_path / "unknown")
    described = json.dumps({"class": "TokenState", "states": {}, "tensors": ["keys", "values"]})
    save_file({"keys": torch.zeros(1)}, tmp_path / "part", metadata={"state": described})
    with pytest.raises(ValueError, match="saved TokenState has lost its tensor 'values'"):
        State.load(tmp_path / "part")
    with pytest.raises(FileNotFoundError):
        State.load(tmp_path / "absent")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a few states, nested ones too."""
    path = tmp_path_factory.mktemp("states") / "state"
    found = []
    for name, options in (("2mamba", {"fold_at": 4}), ("inline", {}), ("softmax", {"rotary": "selective"})):
        mixer = maclaurin.build_mixer(name, 16, 2, **options)
        mixer(torch.randn(2, 7, 16))[1].save(path)
        found.append(path.read_bytes())
    return found


def parts(file):
    (length,) = struct.unpack("<Q", file[:8])
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def joined(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def places(tree, path=()):
    """Where something stands in a tree of objects and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(tree, draw):
    """The tree with one of its values replaced, left out, doubled, or moved to another place."""
    tree = copy.deepcopy(tree)
    *path, key = draw.choice(list(places(tree)))
    owner = tree
    for step in path:
        owner = owner[step]
    what = draw.randrange(4)
    if what == 0 or (what == 3 and isinstance(owner, list)):
        owner[key] = copy.deepcopy(draw.choice(GARBAGE))
    elif what == 1:
        del owner[key]
    elif what == 2 and isinstance(owner, list):
        owner.append(owner[key])
    else:
        owner[draw.choice(["class", "states", "names", "keys", "other"])] = owner.pop(key)
    return tree


def mutation(file, draw):
    header, body = parts(file)
    what = draw.randrange(5)
    if what == 0:
        changed = bytearray(file)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(min(len(file), 2000))] = draw.randrange(256)
        return bytes(changed)
    if what == 1:
        return file[: draw.randrange(len(file))] + bytes(draw.randrange(256) for _ in range(draw.randrange(9)))
    if what == 2:
        described = mutated(json.loads(header["__metadata__"]["state"]), draw)
        header["__metadata__"]["state"] = json.dumps(described)
        return joined(header, body)
    if what == 3:
        return joined(mutated(header, draw), body)
    name = draw.choice([name for name in header if name != "__metadata__"])
    shape = header[name]["shape"]
    draw.shuffle(shape)
    header[name]["dtype"] = draw.choice([header[name]["dtype"], "F64", "I32", "F8_E4M3", "U64", "BOOL"])
    return joined(header, body)


def test_mutations_are_a_state_or_a_sentence(saved, tmp_path):
    draw = random.Random(0)
    path = tmp_path / "mutated"
    sentences = []
    for _ in range(800):
        path.write_bytes(mutation(draw.choice(saved), draw))
        try:
            State.load(path).check()
        except ValueError as error:
            sentences.append(str(error))
    assert len(sentences) > 500
    assert all(text.startswith(f"{path} is not a saved state: ") and "\n" not in text for text in sentences)


def described(**changes):
    whole = {"class": "TokenState", "states": {}, "tensors": ["keys", "values"]}
    return json.dumps({**whole, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "description is not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"class": ' + "9" * 5000 + "}", "description is not valid JSON"),
        ("[]", "the description of a state must be an object, got list"),
        ("{}", "must have a str 'class', got None"),
        (described(states=[]), "must have a dict 'states', got \\[\\]"),
        (described(tensors={}), "must have a list 'tensors'"),
        (described(names=3), "must have a dict 'names', got 3"),
        (described(tensors=["keys", "values", ["lengths"]]), "a TokenState has no field \\['lengths'\\]"),
        (described(tensors=["keys"]), "it holds the tensor 'values', which no field has"),
        (described(tensors=["keys", "values", "values"]), "a field of a TokenState is described twice"),
        (described(states={"values": {}}), "a field of a TokenState is described twice"),
        (described(names={"lengths": "many"}), "state.lengths must be a tensor or None, got str"),
        (described(**{"class": "NearState"}), "a NearState has no field 'keys'"),
        (described(states={"log_decay": {"class": "State", "states": {}, "tensors": []}}), "unknown class 'State'"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_descriptions_are_checked(text, message, tmp_path):
    tensors = {"keys": torch.zeros(1, 2, 3, 4), "values": torch.zeros(1, 2, 3, 5)}
    save_file(tensors, tmp_path / "state", metadata={"state": text})
    with pytest.raises(ValueError, match=f"state is not a saved state: .*{message}"):
        State.load(tmp_path / "state")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": torch.zeros(1, 2, 3)}, r"state.keys must be a floating point tensor of shape \(B, S, G, K\), got"),
        ({"values": torch.zeros(2, 2, 3, 5)}, r"state.values must be a floating point tensor of shape \(1, 2, 3, V\), got"),
        ({"values": torch.zeros(1, 2, 3, 5, dtype=torch.int64)}, "state.values must be a floating point tensor"),
        (
            {"values": torch.zeros(1, 2, 3, 5, dtype=torch.int8)},
            "'values' must have one of the types F16, BF16, F32, F64, I64",
        ),
        ({"log_decay": torch.ones(1, 2, 3)}, "state.log_decay must be <= 0 everywhere, got 1"),
        ({"lengths": torch.tensor([3])}, r"state.lengths must lie between 0 and the 2 slots, got \[3\]"),
        ({"lengths": torch.tensor([-1])}, "state.lengths must not be negative, got -1"),
        ({"lengths": torch.tensor([1.0])}, r"state.lengths must be whole numbers \(int64\) of shape \(1,\), got"),
        ({"recurrent": torch.zeros(1, 3, 10, 7)}, "state.recurrent must have 5 or 6 value channels"),
        (
            {"recurrent": torch.zeros(1, 2, 10, 5)},
            r"state.recurrent must be a floating point tensor of shape \(1, 3, F, W\)",
        ),
        ({"extra": torch.zeros(1)}, "a PowerState has no field 'extra'"),
    ],
)
def test_fields_of_a_file_must_fit_each_other(changes, message, tmp_path):
    tensors = {"keys": torch.zeros(1, 2, 3, 4), "values": torch.zeros(1, 2, 3, 5), **changes}
    text = described(**{"class": "PowerState", "tensors": list(tensors)})
    save_file(tensors, tmp_path / "state", metadata={"state": text})
    with pytest.raises(ValueError, match=message):
        State.load(tmp_path / "state")


@pytest.mark.parametrize("shape", [[0, 2**60, 1, 1], [0, 2**33, 3, 4], [2**62, 2, 0, 2**62], [0, 2**63, 1, 1]], ids=str)
def test_nothing_is_allocated_for_sizes_that_no_data_stand_behind(shape, tmp_path):
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    header = {"keys": entry, "values": entry, "__metadata__": {"state": described()}}
    (tmp_path / "state").write_bytes(joined(header, b""))
    with pytest.raises(ValueError, match="state is not a saved state: "):
        State.load(tmp_path / "state")


def test_states_are_not_nested_without_end(tmp_path):
    text = {"class": "ConvState", "states": {}, "tensors": ["inputs"]}
    for _ in range(100):
        text = {"class": "MixerState", "states": {"attention": text}, "tensors": []}
    name = "attention." * 100 + "inputs"
    save_file({name: torch.zeros(1, 2, 3)}, tmp_path / "state", metadata={"state": json.dumps(text)})
    with pytest.raises(ValueError, match="nested more than 8 deep"):
        State.load(tmp_path / "state")


def test_files_of_before_states_had_names_are_read(tmp_path):
    state = folded_state()
    state.save(tmp_path / "state")
    header, body = parts((tmp_path / "state").read_bytes())
    text = json.loads(header["__metadata__"]["state"])
    del text["names"]
    header["__metadata__"]["state"] = json.dumps(text)
    (tmp_path / "state").write_bytes(joined(header, body))
    loaded = State.load(tmp_path / "state")
    assert isinstance(loaded, PowerState)
    assert all(torch.equal(tensor, state.tensors()[name]) for name, tensor in loaded.tensors().items())
