"""Writes calls that differ in one thing from a golden call, each with PyTorch's verdict on it.

Invariant: `FAMILY.jsonl` holds one call a line: a graph of placeholders and the changed node, and what PyTorch says of
that very node, read back from the graph. `FAMILY.safetensors` holds inputs and results by the digest of their content,
`schemas.json` the parameters of PyTorch's operators. Calls are made in a process that may die, since some operators
follow wrong shapes out of their tensors; what depends on the bytes around the inputs is no result. Re-running gives the
same bytes.
"""

import json
import multiprocessing
import pickle
import re
import sys
import zlib
from collections.abc import Iterator
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import torch  # noqa: E402
from call import TYPES, Call, Contents, calls_of, content_of, decode, dropout, span  # noqa: E402
from changes import changes  # noqa: E402
from safetensors.torch import save  # noqa: E402

TABLE = HERE.parents[2] / "crates" / "planner" / "src" / "operator" / "table.rs"
# Calls of each operator, so that a family has forty at least and the files stay small.
CALLS = {"elementwise": 8, "movement": 14, "reduction": 14, "view": 14, "product": 24, "normalization": 24,
         "loss": 36, "attention": 36, "optimizer": 36}
# Elements around each input whose content must not matter.
MARGIN = 4096


def families() -> dict[str, str]:
    """The family of each operator, which is the file that derives its outputs."""
    rows = TABLE.read_text().partition("\noperators! {")[2]
    return {name: family for name, family in re.findall(r'^    \w+\s+"([\w.]+)"\s[^;]*?\b(\w+)::\w+, \[', rows, re.M)}


def overload(op: str) -> Any:
    """The operator of PyTorch that a graph calls so."""
    namespace, name, variant = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


def schemas() -> dict[str, list[dict[str, Any]]]:
    """The parameters of each of PyTorch's operators: names, and how they may be given or left out."""
    return {
        op: [{"name": argument.name, "keyword": argument.kwarg_only, "default": argument.has_default_value(),
              "nullable": isinstance(argument.type, torch.OptionalType)} for argument in overload(op)._schema.arguments]
        for op in families() if not op.startswith("tightfit.")
    }


def run(call: Call, contents: Contents, filler: float) -> list[Any]:
    """PyTorch's results, as places where the operator makes views and as contents."""
    margin = 0 if call.is_view() else MARGIN
    tensors: dict[int, torch.Tensor] = {}
    for value, tensor in call.tensors.items():
        dtype = TYPES[tensor["dtype"]]
        elements = tensor.get("offset", 0) + span(tensor)
        storage = torch.full((elements + 2 * margin,), filler).to(dtype)
        strides = tensor.get("strides") or contiguous(tensor["shape"])
        # Of a dimension without a step all elements are the first one, before anything is written to them.
        once = [1 if step == 0 else extent for extent, step in zip(tensor["shape"], strides)]
        content = contents[value].to(dtype)[tuple(slice(0, extent) for extent in once)]
        if content.numel():
            storage.as_strided(once, strides, margin + tensor.get("offset", 0)).copy_(content)
        tensors[value] = storage.as_strided(tensor["shape"], strides, margin + tensor.get("offset", 0))
    args, kwargs = decode(call.args, tensors), {key: decode(item, tensors) for key, item in call.kwargs.items()}
    torch.manual_seed(0)
    with torch.no_grad():
        results = apply(call, args, kwargs)
    described = []
    for result in results:
        if result is None:
            described.append(None)
            continue
        place = [list(result.stride()), result.storage_offset()] if call.is_view() else None
        described.append((content_of(result), place))
    return described


def contiguous(shape: list[int]) -> list[int]:
    """Row-major strides."""
    return list(torch.empty(shape, device="meta").stride())


def apply(call: Call, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Calls the operator, or PyTorch's optimizer for the step and rate of the call."""
    if call.op.startswith("tightfit."):
        parameter, gradient, *states = args
        variable = torch.nn.Parameter(parameter)
        kind = {"tightfit.adamw": torch.optim.AdamW, "tightfit.sgd": torch.optim.SGD}[call.op]
        optimizer = kind([variable], lr=call.settings["learning_rate"], foreach=False, **kwargs)
        if kind is torch.optim.AdamW:
            first, second = states
            step = torch.tensor(float(call.settings["step"] - 1))
            optimizer.state[variable] = {"step": step, "exp_avg": first, "exp_avg_sq": second}
        elif states:
            [buffer] = states
            optimizer.state[variable] = {"momentum_buffer": buffer}
        variable.grad = gradient.clone()
        optimizer.step()
        return [parameter, *states]
    result = overload(call.op)(*args, **kwargs)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def verdict(worker: "Worker", call: Call, contents: Contents) -> list[Any] | str:
    """PyTorch's results, or why there are none."""
    answers = [worker.ask(call, contents, filler) for filler in (0.0, 1.0)]
    refusals = [answer for answer in answers if isinstance(answer, str)]
    if refusals:
        return refusals[0]
    # PyTorch draws a mask of its own where dropout drops some elements and not all.
    dropped = call.args[1] if call.op == "aten.native_dropout.default" else 0
    drawn = dropped not in (0, 1) and call.args[2] is not False
    same = all(
        (a is None) == (b is None) and (a is None or (a[1] == b[1] and Contents.digest(a[0]) == Contents.digest(b[0])))
        for a, b in zip(answers[0], answers[1], strict=True)
    )
    if not same and not drawn:
        return "it reads beyond its inputs"
    unknown = [str(result[0].dtype) for result in answers[0] if result and result[0].dtype not in TYPES.values()]
    return f"it gives {unknown[0]}, which no graph has" if unknown else answers[0]


class Worker:
    """A process that makes calls, and is replaced when it dies of one."""

    def __init__(self) -> None:
        self.process = multiprocessing.get_context("fork")
        self.begin()

    def begin(self) -> None:
        self.pipe, theirs = self.process.Pipe()
        self.child = self.process.Process(target=serve, args=(theirs, self.pipe), daemon=True)
        self.child.start()
        theirs.close()

    def ask(self, call: Call, contents: Contents, filler: float) -> list[Any] | str:
        """What PyTorch makes of the call; a sentence where it fails, or dies twice."""
        for _ in range(2):  # the first death may be an earlier call's doing
            try:
                self.pipe.send_bytes(pickle.dumps((call, contents, filler)))
                return pickle.loads(self.pipe.recv_bytes())
            except (EOFError, ConnectionError):
                self.end()
                self.begin()
        return "it dies"

    def end(self) -> None:
        self.pipe.close()
        self.child.join()


def serve(pipe: Connection, theirs: Connection) -> None:
    """Makes calls until nobody asks."""
    theirs.close()
    while True:
        try:
            question = pipe.recv_bytes()
        except EOFError:
            return
        try:
            answer = run(*pickle.loads(question))
        except Exception as error:  # noqa: BLE001 – whatever it is, it is PyTorch's verdict
            lines = str(error).strip().splitlines() or [type(error).__name__]
            answer = re.sub(r"0x[0-9a-f]+", "…", lines[0])[:100]
        pipe.send_bytes(pickle.dumps(answer))


def claim(call: Call, results: list[Any]) -> None:
    """Makes the outputs of the call what PyTorch made of them."""
    before, is_view = call.outputs, call.is_view()
    call.outputs = []
    for index, result in enumerate(results):
        was = before[index] if index < len(before) else None
        if result is None or (index < len(before) and was is None):
            call.outputs.append(None)
            continue
        content, place = result
        names = {dtype: name for name, dtype in TYPES.items()}
        output = {"shape": list(content.shape), "dtype": names[content.dtype]}
        if is_view:
            strides, offset = place
            # A view says where it lies, in the storage of what it is a view of.
            output |= {"contiguous": False, "strides": strides, "offset": offset}
            output["over"] = next(iter(call.tensors))
        elif was is not None and was.get("over") is not None:
            output |= {key: was[key] for key in ("contiguous", "strides", "offset", "over") if key in was}
        call.outputs.append(output)


def different(a: list[Any], b: list[Any]) -> bool:
    """Other shapes or types."""
    described = [[output and (output["shape"], output["dtype"]) for output in outputs] for outputs in (a, b)]
    return described[0] != described[1]


def judged(worker: Worker, change: str, changed: Call, contents: Contents) -> Iterator[tuple[str, Call, Any]]:
    """A changed call with the verdict: once with PyTorch's outputs, and once with those from before the change."""
    answer = verdict(worker, changed, contents)
    if isinstance(answer, str):
        yield change, changed, answer
        return
    if changed.lies:
        yield change, changed, answer
        return
    true = deepcopy(changed)
    claim(true, answer)
    if different(true.outputs, changed.outputs):
        yield f"{change}, outputs as before", changed, answer
    yield change, true, answer


def main() -> None:
    torch.set_num_threads(1)
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else None
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE
    lines: dict[str, list[str]] = {family: [] for family in CALLS}
    stored: dict[str, Contents] = {family: Contents() for family in CALLS}
    for op, family in families().items():
        bases = dropout() if op == "aten.native_dropout.default" else calls_of(HERE.parent / f"{op}.json")
        found = [(base, *change) for base in bases for change in changes(base)]
        order = sorted(range(len(found)), key=lambda index: zlib.crc32(f"{op} {index}".encode()))
        worker, written = Worker(), 0
        for index in sorted(order[: limit or CALLS[family]]):
            base, change, changed = found[index]
            contents = changed.contents()
            for text, call, answer in judged(worker, change, changed, contents):
                record: dict[str, Any] = {"operator": op, "change": text, "settings": call.settings}
                record["inputs"] = [stored[family].keep(contents[value]) for value in call.tensors]
                if isinstance(answer, str):
                    record["refused"] = answer
                else:
                    record["results"] = [item and stored[family].keep(item[0]) for item in answer]
                    if call.wrong:
                        record["wrong"] = call.wrong
                record["graph"] = call.document(f"{op} {written}")
                lines[family].append(json.dumps(record, separators=(",", ":")))
                written += 1
        worker.end()
    for family, text in lines.items():
        (folder / f"{family}.jsonl").write_text("\n".join(text) + "\n")
        (folder / f"{family}.safetensors").write_bytes(save(stored[family].by_digest))
    (folder / "schemas.json").write_text(json.dumps(schemas(), indent=1) + "\n")
    print(json.dumps({family: len(text) for family, text in lines.items()}))


if __name__ == "__main__":
    main()
