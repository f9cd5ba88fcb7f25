"""Loads into PyTorch what the program trained: the model is the one that the engine had.

Invariant: steps are trained by the program inside the package; the engine's loss of the batch after the last step is
what PyTorch has to compute with the loaded weights.

Tier: quick, since it takes 2 s.
"""

import gzip
import json
import shutil
import subprocess
import sys

import gpt
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import tightfit


class Tied(nn.Module):
    """A perceptron with a tied weight, a frozen layer, buffers that are or are not read and are or are not in its
    state, and a layer that is named like a loss."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.frozen = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8).requires_grad_(False)
        self.middle, self.again = nn.Linear(8, 8), nn.Linear(8, 8)
        self.last, self.loss = nn.Linear(8, 3), nn.Linear(3, 3)
        self.again.weight = self.middle.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, 8))
        self.register_buffer("unread", torch.arange(3))

    def forward(self, x):
        hidden = functional.relu(self.norm(self.first(x))) * self.scale + self.shift
        return self.loss(self.last(self.again(self.frozen(self.middle(hidden)))))


def train(step, *arguments):
    """The lines that the program prints."""
    command = [sys.executable, "-m", "tightfit", "train", str(step), "--json", "--threads", "1", "--eval-batches", "1",
               "--budget", "100%", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=step.parent)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def exported(folder, model, **changes):
    """The folder of a step of `model` over 40 made-up rows."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.cat([torch.randn(40, 6, generator=generator), torch.randint(0, 3, (40, 1), generator=generator)], 1)
    lines = [",".join([f"{item:.3f}" for item in row[:6]] + [str(int(row[6]))]) for row in rows.tolist()]
    (folder / "table.csv").write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n")
    data = {"kind": "table", "file": "../table.csv", "features": 6, "scale": 1.0, "batch": 9, "evaluation_batch": 8,
            "sampling_seed": 1, "validation": {"every": 5, "remainder": 0}}
    batch = torch.randn(9, 6, generator=generator), torch.randint(0, 3, (9,), generator=generator)
    evaluation = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
    tightfit.export(model, functional.cross_entropy, batch, out=folder / "step", data=data, evaluation_batch=evaluation,
                    **({"name": "tied"} | changes))
    return folder / "step"


def next_loss(step, saved, dump):
    """The engine's loss of the batch that follows, and that batch."""
    [loss] = [line["loss"] for line in train(step, "--steps", 1, "--resume", saved, "--dump", dump) if "loss" in line]
    stored = load_file(dump)
    return loss, stored["batch.input"], stored["batch.target"]


def test_a_trained_model_goes_on_in_pytorch(tmp_path):
    torch.manual_seed(1)
    model = Tied()
    step = exported(tmp_path, model)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    train(step, "--steps", 5, "--save", step / "trained.safetensors")
    state = tightfit.load(step)
    assert set(state) == set(before)
    assert {key: (item.dtype, item.shape) for key, item in state.items()} == \
        {key: (item.dtype, item.shape) for key, item in before.items()}
    assert state["again.weight"] is state["middle.weight"]
    stayed = {key for key, item in state.items() if torch.equal(item, before[key])}
    assert stayed == {"frozen.weight", "frozen.bias", "shift", "unread"}

    other = Tied()
    other.load_state_dict(state)
    loss, inputs, targets = next_loss(step, step / "trained.safetensors", tmp_path / "dump")
    assert functional.cross_entropy(other(inputs), targets).item() == pytest.approx(loss, rel=1e-5)
    assert functional.cross_entropy(model(inputs), targets).item() != pytest.approx(loss, rel=1e-3)


def test_a_gpt_has_its_head_and_its_embedding_in_one(corpus, tmp_path):
    step, saved = corpus / "steps" / "gpt-nano", tmp_path / "weights"
    train(step, "--steps", 2, "--save", saved)
    model = gpt.Gpt(gpt.Shape(layers=2, width=64, heads=2, window=64, batch=8))
    model.load_state_dict(tightfit.load(step, saved))
    loss, inputs, targets = next_loss(step, saved, tmp_path / "dump")
    assert gpt.loss(model(inputs), targets).item() == pytest.approx(loss, rel=1e-5)


def refused(*arguments):
    with pytest.raises(tightfit.WeightsError) as found:
        tightfit.load(*arguments)
    return str(found.value)


def test_what_is_not_there_or_damaged_is_said(tmp_path):
    step = exported(tmp_path, Tied())
    assert "tightfit.export" in refused(tmp_path / "nowhere")
    assert "--save" in refused(step)
    assert "is not there" in refused(step, tmp_path / "gone")
    assert "was not saved by" in refused(step, step / "weights.safetensors")

    saved = step / "trained.safetensors"
    train(step, "--steps", 1, "--save", saved)
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-7])
    assert "damaged" in refused(step, saved)
    saved.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "bit for bit" in refused(step, saved)
    saved.write_bytes(whole)
    (step / "again.safetensors").write_bytes(whole)
    assert "again.safetensors, trained.safetensors" in refused(step)

    tensors = load_file(saved)
    metadata = {"format": "tightfit-weights/1", "step_name": "tied", "steps": "1", "seed": "1"}
    del tensors["last.bias"]
    save_file(tensors, saved, metadata)
    assert "'last.bias'" in refused(step, saved)
    save_file(tensors, saved, metadata | {"step_name": "another"})
    assert "'another'" in refused(step, saved)
    save_file(tensors | {"last.bias": torch.ones(4)}, saved, metadata)
    assert "as float32 [4] and not as float32 [3]" in refused(step, saved)
    (step / "train.json.gz").write_bytes((step / "train.json.gz").read_bytes()[:99])
    assert "train.json.gz is damaged" in refused(step, saved)
    (step / "step.json").write_text("{")
    assert "damaged" in refused(step, saved)
    (step / "step.json").write_text("[]")
    assert "describes no step" in refused(step, saved)


def test_every_damaged_byte_of_a_header_is_found(tmp_path):
    step = exported(tmp_path, Tied())
    saved = step / "trained.safetensors"
    train(step, "--steps", 1, "--save", saved)
    whole = saved.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    for at in (*range(0, 8, 3), *range(8, end, 29)):
        for mask in (1, 32):
            saved.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1:])
            refused(step, saved)


METADATA = {"format": "tightfit-weights/1", "step_name": "tied", "steps": "1", "seed": "1"}


class Renamed(Tied):
    """Its state has a tensor under a name that its parameters do not have, and one that no graph reads."""

    def state_dict(self, *arguments, **options):
        state = super().state_dict(*arguments, **options)
        state["renamed.weight"] = state.pop("first.weight")
        return state | {"counter": torch.tensor(7)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A step and the weights that a run of it could have saved; tests copy it before they damage it."""
    step = exported(tmp_path_factory.mktemp("whole"), Renamed())
    save_file(load_file(step / "weights.safetensors"), step / "trained.safetensors", METADATA)
    return step


def test_what_the_state_calls_otherwise_or_no_graph_reads_is_there(whole):
    state, own = tightfit.load(whole), Renamed().state_dict()
    assert {key: (item.dtype, item.shape) for key, item in state.items()} == \
        {key: (item.dtype, item.shape) for key, item in own.items()}
    assert torch.equal(state["renamed.weight"], load_file(whole / "trained.safetensors")["first.weight"])
    assert torch.equal(state["counter"], torch.tensor(7))


DEEP = b"[" * 200_000
DAMAGED = {
    "a number for a file": lambda step: step.update(training=5),
    "no file": lambda step: step.pop("training"),
    "a list for a file": lambda step: step.update(evaluation=["eval.json.gz"]),
    "a file whose name no system has": lambda step: step.update(training="a\0b"),
    "no name": lambda step: step.pop("name"),
    "no state": lambda step: step.update(state_dict=None),
    "a list for a state": lambda step: step.update(state_dict=[]),
    "no foreign names": lambda step: step["state_dict"].update(foreign=None),
    "a number for foreign names": lambda step: step["state_dict"].update(foreign=3),
    "foreign names that are none": lambda step: step["state_dict"].update(foreign=[["first.weight"]]),
    "a foreign name of nothing": lambda step: step["state_dict"].update(foreign=["nothing"]),
    "ties in a list": lambda step: step["state_dict"].update(tied=["again.weight"]),
    "a tie to nothing": lambda step: step["state_dict"]["tied"].update({"again.weight": "nothing"}),
    "a tie to a list": lambda step: step["state_dict"]["tied"].update({"again.weight": []}),
    "a tie of what is there": lambda step: step["state_dict"]["tied"].update({"last.bias": "loss.bias"}),
    "no parameters": lambda step: step.update(parameters={}),
    "a parameter too few": lambda step: step["parameters"].pop("last.bias"),
    "a parameter too many": lambda step: step["parameters"].update(more={"constant": 0.0}),
}
DAMAGED_GRAPHS = {
    "null for nodes": lambda graph: graph.update(nodes=None),
    "a number for an output": lambda graph: graph["nodes"][0].update(outputs=[1]),
    "a list for a name": lambda graph: graph["nodes"][0].update(parameter=["first.weight"]),
    "a type that is none": lambda graph: graph["nodes"][0]["outputs"][0].update(dtype="f99"),
    "a shape that is none": lambda graph: graph["nodes"][0]["outputs"][0].update(shape="86"),
}


@pytest.mark.parametrize("file, damage", [
    *(pytest.param("step.json", damage, id=name) for name, damage in DAMAGED.items()),
    *(pytest.param(file, damage, id=f"{name}, {file}") for name, damage in DAMAGED_GRAPHS.items()
      for file in ("train.json.gz", "eval.json.gz")),
    pytest.param("train.json.gz", lambda graph: graph.update(nodes=[]), id="no nodes, train.json.gz"),
    *(pytest.param(file, None, id=f"deep, {file}") for file in ("step.json", "train.json.gz", "eval.json.gz")),
])
def test_whatever_is_damaged_is_an_error_of_weights_and_nothing_else(whole, tmp_path, file, damage):
    step = shutil.copytree(whole, tmp_path / "step")
    path, (pack, unpack) = step / file, (gzip.compress, gzip.decompress) if file.endswith(".gz") else (bytes, bytes)
    content = DEEP
    if damage is not None:
        described = json.loads(unpack(path.read_bytes()))
        damage(described)
        content = json.dumps(described).encode()
    path.write_bytes(pack(content))
    assert "export the step again" in refused(step)


def test_tensors_have_the_type_that_was_exported(whole, tmp_path):
    step = shutil.copytree(whole, tmp_path / "step")
    tensors = load_file(whole / "trained.safetensors")
    for key, dtype in (("last.bias", torch.float16), ("last.bias", torch.int64), ("unread", torch.float32)):
        save_file(tensors | {key: tensors[key].to(dtype)}, step / "trained.safetensors", METADATA)
        was, is_now = (str(item).removeprefix("torch.") for item in (tensors[key].dtype, dtype))
        assert f"{key!r} as {is_now} [3] and not as {was} [3]" in refused(step)


def test_what_only_the_evaluation_reads_is_as_it_was_exported(whole, tmp_path):
    step = shutil.copytree(whole, tmp_path / "step")
    graph = json.loads(gzip.decompress((step / "train.json.gz").read_bytes()))
    [shift] = [node for node in graph["nodes"] if node.get("parameter") == "shift"]
    shift.update(phase="input")
    del shift["parameter"]
    (step / "train.json.gz").write_bytes(gzip.compress(json.dumps(graph).encode()))
    initial, tensors = load_file(whole / "weights.safetensors"), load_file(whole / "trained.safetensors")
    shift = tensors.pop("shift")
    save_file(tensors, step / "trained.safetensors", METADATA)
    assert torch.equal(tightfit.load(step)["shift"], shift)
    for other in (shift.double(), shift[:5]):
        save_file(initial | {"shift": other}, step / "weights.safetensors")
        assert "weights.safetensors has 'shift' as" in refused(step)
        save_file(tensors | {"shift": other}, step / "trained.safetensors", METADATA)
        assert "trained.safetensors has 'shift' as" in refused(step)
        save_file(tensors, step / "trained.safetensors", METADATA)
    (step / "weights.safetensors").unlink()
    assert "weights.safetensors is not there; export the step again" in refused(step)


def test_what_no_graph_reads_takes_the_place_of_nothing(whole, tmp_path):
    for key in ("last.bias", "again.weight", "renamed.weight"):
        step = shutil.copytree(whole, tmp_path / key)
        save_file({key: torch.ones(3)}, step / "rest.safetensors")
        assert f"rest.safetensors is damaged: it has {key!r}" in refused(step)
    (step / "rest.safetensors").write_bytes(b"x" * 20)
    assert "rest.safetensors cannot be read" in refused(step)
    (step / "rest.safetensors").unlink()
    (step / "rest.safetensors").mkdir()
    assert "export the step again" in refused(step)
