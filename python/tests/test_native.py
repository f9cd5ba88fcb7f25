"""The planner and the program inside the package: its functions return what the program prints, they refuse bad
arguments properly, whatever these are, and Python threads go on while they work.

Invariant: the program runs in a separate process, as for a user who installs this package; no time is asserted.

Tier: quick, since it takes 11 s.
"""

import functools
import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tightfit
from tightfit import _native, program

ROOT = Path(__file__).resolve().parents[2]
RESNET = ROOT / "corpus/graphs/resnet50_b32.json.gz"
STEP = ROOT / "corpus/steps/gpt-nano"
BINARY = Path(os.environ.get("TIGHTFIT_BINARY", ROOT / "target" / "debug" / "tightfit"))
SEARCH = {"iterations": 20_000, "seed": 3}
HUGE = 10**400


def run(*arguments, command=None, **options) -> subprocess.CompletedProcess:
    """The program of this package."""
    words = [*(command or program.own()), *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, timeout=300, check=False, **options)


def printed(*arguments) -> dict:
    """The program's output as JSON, without the name of its format, which Python objects do not have."""
    ran = run(*arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer.pop("format") == "tightfit-answer/1"
    return answer


def limits() -> list[str]:
    return ["--iterations", str(SEARCH["iterations"]), "--seed", str(SEARCH["seed"])]


@pytest.fixture(scope="module")
def resnet() -> tightfit.Graph:
    return tightfit.read_graph(RESNET)


@pytest.fixture(scope="module")
def fitted(resnet) -> tightfit.Fitted:
    return tightfit.fit(resnet, "60%", **SEARCH)


def test_a_plan_explains_itself_as_the_program_does(resnet):
    for planner, options in (("auto", []), ("capuchin-swap", ["--tier", "pcie4"])):
        named = ["--planner", planner.removesuffix("-swap"), *(["--swap"] if options else [])]
        answer = printed("plan", RESNET, "--budget", "70%", "--explain", *named, *options, *limits())
        made = tightfit.fit(resnet, "70%", planner=planner, tier="pcie4" if options else None, **SEARCH).explain()
        assert made == {key: answer[key] for key in made} and bool(made["swapped"]) == bool(options)
        assert {row["node"] for row in made["swapped"]} <= {*tightfit.fit(resnet, "100%").runs, *_placeholders(RESNET)}
    capuchin = tightfit.fit(resnet, "85%", planner="capuchin", **SEARCH).explain()["explanation"]
    assert capuchin["choices"] and capuchin["peak_bytes"] <= capuchin["unplanned_peak_bytes"]


def _placeholders(graph: Path) -> list[str]:
    nodes = json.loads(gzip.decompress(graph.read_bytes()))["nodes"]
    return [node["name"] for node in nodes if node["op"] == "placeholder"]


def test_a_graph_is_the_same_however_it_is_given(resnet, fitted):
    packed = RESNET.read_bytes()
    document = json.loads(gzip.decompress(packed))
    assert (resnet.name, resnet.nodes) == (document["name"], len(set(fitted.runs)))
    for given in (str(RESNET), packed, gzip.decompress(packed), json.dumps(document), document):
        assert tightfit.fit(given, "60%", **SEARCH).to_json() == fitted.to_json()
    assert resnet.unplanned_peak() == fitted.unplanned_peak
    assert resnet.unplanned_peak("h100-80gb") == fitted.unplanned_peak  # time differs, bytes do not
    assert 0 < resnet.static_bytes < resnet.unplanned_peak()


def test_fit_says_what_the_program_says(fitted, tmp_path):
    out = tmp_path / "plan.json"
    says = printed("plan", RESNET, "--budget", "60%", *limits(), "-o", out)
    assert fitted.to_json() == out.read_text().strip()
    figures = {
        "graph": "graph", "machine": "machine", "planner": "planner", "budget": "budget_bytes", "reserve": "reserve_bytes",
        "peak": "peak_bytes", "slab": "slab_bytes", "unplanned_peak": "unplanned_peak_bytes", "overhead": "overhead",
        "bound_order": "bound_order",
    }
    assert {ours: getattr(fitted, ours) for ours in figures} == {ours: says[theirs] for ours, theirs in figures.items()}
    for ours, theirs in {"seconds": "step_seconds", "unplanned_seconds": "unplanned_step_seconds", "bound_seconds": "bound_step_seconds"}.items():
        assert getattr(fitted, ours) == pytest.approx(says[theirs], rel=1e-12)
    assert fitted.gap == pytest.approx(says["gap"], rel=1e-12)
    assert len(fitted.recomputed) == says["recomputed_nodes"] > 0
    assert sorted(set(fitted.recomputed)) == sorted(row["node"] for row in says["recomputed"])


def test_runs_are_the_plans_runs(fitted):
    document = json.loads(fitted.to_json())
    runs = [words[1] for words in document["instructions"] if words[0] in ("run", "recompute")]
    assert list(fitted.runs) == runs
    again, seen = [], set()
    for name in runs:
        again += [name] if name in seen else []
        seen.add(name)
    assert list(fitted.recomputed) == again == [words[1] for words in document["instructions"] if words[0] == "recompute"]
    with pytest.raises(AttributeError):
        fitted.peak = 0


def test_the_other_verbs_say_what_the_program_says(resnet, fitted, tmp_path):
    plan, page = tmp_path / "plan.json", tmp_path / "page.html"
    plan.write_text(fitted.to_json())
    says = printed("check", RESNET, plan, "--budget", "60%")
    for given in (fitted, plan, str(plan), fitted.to_json(), plan.read_bytes(), json.loads(fitted.to_json())):
        assert tightfit.check(resnet, given, "60%") == says
    assert tightfit.check(resnet, fitted) == says, "its own budget, where none is given"

    def untimed(points: list[dict]) -> list[dict]:
        return [{key: value for key, value in point.items() if key != "planning_seconds"} for point in points]

    few = {"points": 3, "iterations": 2000, "seed": 5}
    points = ["--points", "3", "--iterations", "2000", "--seed", "5"]
    assert untimed(tightfit.pareto(resnet, **few)) == untimed(printed("pareto", RESNET, *points)["points"])

    assert tightfit.modules(resnet) == printed("modules", RESNET)
    statistics = tightfit.modules(resnet, machine="h100-80gb", ancestors=True)
    assert statistics == printed("modules", RESNET, "--machine", "h100-80gb", "--ancestors")

    def timeless(answer: dict) -> dict:
        return {key: value for key, value in answer.items() if key != "seconds"}

    assert timeless(tightfit.sac(resnet, "min")) == timeless(printed("sac", RESNET, "--budget", "min"))
    assert tightfit.sac(statistics, "min")["peak_bytes"] == tightfit.sac(resnet, "min")["peak_bytes"]
    shared = ["--budget", "min", "--world-size", "8", "--bandwidth", "100GB/s", "--latency", "0.00002"]
    assert timeless(tightfit.shard(resnet, "min", world_size=8, bandwidth=100e9, latency=20e-6)) == timeless(printed("shard", RESNET, *shared))

    tightfit.report(resnet, out=page, plan=fitted, **few)
    theirs = tmp_path / "theirs.html"
    ran = run("report", RESNET, "--plan", plan, "-o", theirs, *points)
    assert ran.returncode == 0, ran.stderr
    assert page.read_text() == theirs.read_text()


def test_an_infeasible_budget_is_refused_with_its_proof(resnet):
    ran = run("plan", RESNET, "--budget", "400MiB", "--planner", "capuchin", "--explain", "--json")
    assert ran.returncode == (3 if b"no plan fits " in ran.stderr else 10)
    says = json.loads(ran.stdout)
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        tightfit.fit(resnet, "400MiB", planner="capuchin")
    error = refused.value
    assert isinstance(error, tightfit.TightfitError)
    assert (error.budget, error.needed, error.smallest) == (says["budget_bytes"], says["needed_bytes"], says["reached_bytes"])
    assert f"error: {error}" == ran.stderr.decode().strip()
    assert f"`{error.binding}`" in str(error) and error.live[0][0] in str(error)
    sizes = [size for _, size in error.live]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) <= error.smallest
    assert tightfit.fit(resnet, error.smallest, planner="capuchin").peak <= error.smallest
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_an_infeasible_budget_for_modules_is_refused_with_its_proof(resnet):
    with pytest.raises(tightfit.InfeasibleBudget) as refused:
        tightfit.sac(resnet, 1000)
    error = refused.value
    assert error.budget == 1000 and error.needed == error.smallest > 1000
    assert tightfit.sac(resnet, error.smallest)["peak_bytes"] <= error.smallest


def test_a_damaged_plan_is_refused(resnet, fitted):
    whole = json.loads(fitted.to_json())

    def refused(damage, match: str | None = None):
        damaged = json.loads(json.dumps(whole))
        damage(damaged)
        with pytest.raises(tightfit.PlanError, match=match):
            tightfit.check(resnet, damaged)

    refused(lambda plan: plan["instructions"].pop(len(plan["instructions"]) // 2))
    refused(lambda plan: plan["instructions"].reverse())
    refused(lambda plan: plan.pop("instructions"))
    refused(lambda plan: plan.update(format="tightfit-plan/7"))
    with pytest.raises(tightfit.PlanError):
        tightfit.check(resnet, fitted, fitted.slab - 1)
    with pytest.raises(tightfit.PlanError, match="another graph"):
        tightfit.check(ROOT / "corpus/graphs/vit_b16_b32.json.gz", fitted)
    with pytest.raises(tightfit.PlanError):
        tightfit.check(resnet, b"{")


SHARD = """
import os, signal, threading
import tightfit

# Who started the tests may have it ignored, as shells do for what runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    tightfit.shard({graph!r}, "36%", world_size=8, bandwidth="100GB/s", latency="10us", checkpoint=True, gap=0, deadline=1e5)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_ends_a_search_for_what_to_shard():
    # Without it, this search would take far too long.
    graph = str(ROOT / "corpus/graphs/bert_base_drop_b16_s512.json.gz")
    ran = subprocess.run([sys.executable, "-c", SHARD.format(graph=graph)], capture_output=True, text=True, timeout=600, check=False)
    assert ran.stdout.split() == ["interrupted"], ran.stderr


class Wild:
    """An object whose every conversion fails in a way of its own."""

    def __repr__(self):
        return "Wild()"

    def __index__(self):
        raise ZeroDivisionError

    def __fspath__(self):
        return 7


CIRCLE: dict = {}
CIRCLE["nodes"] = CIRCLE
DEEP: dict = {}
for _ in range(100_000):
    DEEP = {"nodes": DEEP}
NOT_GRAPHS = [
    b"", b"{", b"\x1f\x8b", b"\xff" * 99, "{", "", "no such file", "nul\0byte", "\udcff{", {}, {"format": "tightfit-graph/1"},
    {"format": float("nan")}, {1: {2}}, CIRCLE, DEEP, 5, None, [], object(), Wild(), Path("/"), ROOT, b"[" * 100_000,
    json.dumps({"format": "tightfit-graph/1", "modules": [""], "storages": [10**30], "nodes": [], "outputs": []}),
    {"format": "tightfit-graph/1", "modules": [], "storages": [-1], "nodes": [{"name": 7}], "outputs": [HUGE % 10**30]},
]
NOT_BUDGETS = ["", "6 apples", "nan", "nan%", "-1", "1e999GiB", "0", 0, -1, 10**30, HUGE, float("nan"), 0.5, None, True, b"1", [], Wild(), "\udcff"]
ORDERLY = tightfit.TightfitError


def test_what_is_no_graph_is_refused_in_order(fitted):
    for given in NOT_GRAPHS:
        for call in (
            tightfit.read_graph,
            lambda graph: tightfit.fit(graph, "60%"),
            lambda graph: tightfit.check(graph, fitted),
            lambda graph: tightfit.sac(graph, "60%"),
            tightfit.modules,
        ):
            with pytest.raises(ORDERLY) as refused:
                call(given)
            assert "report this" not in str(refused.value)


def test_what_is_no_budget_is_refused_in_order(resnet, fitted):
    for given in NOT_BUDGETS:
        for call in (
            lambda budget: tightfit.fit(resnet, budget),
            lambda budget: tightfit.sac(resnet, budget),
            lambda budget: tightfit.shard(resnet, budget, world_size=2, bandwidth=1e9, latency=0),
        ):
            with pytest.raises(ORDERLY):
                call(given)
    with pytest.raises(tightfit.OptionError):
        tightfit.check(resnet, fitted, "min")


@pytest.mark.parametrize(
    "options",
    [
        {"machine": "abacus"}, {"machine": 7}, {"machine": "\0"}, {"planner": "crystal ball"}, {"planner": None},
        {"deadline": float("nan")}, {"deadline": float("inf")}, {"deadline": -1}, {"deadline": HUGE}, {"deadline": "soon"},
        {"deadline": True}, {"deadline": []}, {"iterations": -1}, {"iterations": HUGE}, {"iterations": 1.5}, {"iterations": "9"},
        {"iterations": Wild()}, {"seed": -1}, {"seed": HUGE}, {"seed": True}, {"threads": 0}, {"threads": 10**6}, {"threads": HUGE},
        {"budgets": 3},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_in_order(resnet, options):
    # Exceptions: a name that is not an option, and an error that the caller's own object raises.
    expected = TypeError if "budgets" in options else (ORDERLY, ZeroDivisionError) if isinstance(options.get("iterations"), Wild) else ORDERLY
    with pytest.raises(expected):
        tightfit.fit(resnet, "60%", **options)


def test_what_cannot_be_planned_or_written_is_refused_in_order(resnet, tmp_path):
    for points in (0, 1, 1001, -1, HUGE, None, "3"):
        with pytest.raises(ORDERLY):
            tightfit.pareto(resnet, points=points) if points is not None else tightfit.pareto(resnet, points="")
    for options in ({"world_size": 0}, {"world_size": HUGE}, {"bandwidth": 0}, {"bandwidth": "fast"}, {"latency": -1},
                    {"variant": "theirs"}, {"units": ["nothing"]}, {"units": "letters"}, {"host_latency": 1}):
        with pytest.raises(ORDERLY):
            tightfit.shard(resnet, "min", **{"world_size": 2, "bandwidth": 1e9, "latency": 0, **options})
    closed = (tmp_path / "file").open("wb")
    closed.close()
    for out in (tmp_path / "no" / "folder", tmp_path, closed, None, "\0"):
        with pytest.raises(ORDERLY):
            tightfit.report(resnet, out=out, points=0)


def test_planning_needs_no_torch():
    script = """
import sys
sys.modules.update(torch=None, numpy=None, safetensors=None)  # as if they were not installed
import tightfit
assert set(tightfit.__all__) <= set(dir(tightfit))
fitted = tightfit.fit(sys.argv[1], "min", iterations=100)
assert fitted.peak <= fitted.budget and issubclass(tightfit.InfeasibleBudget, tightfit.TightfitError)
try:
    tightfit.export
except ImportError as error:
    print(error)
"""
    ran = run("-c", script, RESNET, command=[sys.executable])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(b"is not installed; install tightfit[torch]\n")


def test_importing_loads_nothing_else():
    script = "import sys, tightfit; assert not {'torch', 'numpy', 'tightfit._native'} & set(sys.modules)"
    ran = run("-c", script, command=[sys.executable])
    assert ran.returncode == 0, ran.stderr


def test_every_public_name_is_there():
    for name in tightfit.__all__:
        assert getattr(tightfit, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        tightfit.missing  # noqa: B018


def test_the_stubs_name_what_is_compiled():
    """Every function with its parameters, and every attribute: from the stub's own syntax."""
    import ast
    import inspect

    stub = ast.parse((ROOT / "python/tightfit/_native.pyi").read_text())
    functions = {node.name: node.args for node in stub.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef) and part.name[0] != "_"}
               for node in stub.body if isinstance(node, ast.ClassDef)}
    public = {name for name in dir(_native) if not name.startswith("_")}
    assert public == set(functions) | set(classes)
    for name, arguments in functions.items():
        parameters = inspect.signature(getattr(_native, name)).parameters
        assert list(parameters) == [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)], name
    for name, parts in classes.items():
        assert parts == {part for part in dir(getattr(_native, name)) if not part.startswith("_")}, name


# Background processes may have been told to ignore the signal, and then their children ignore it, too.
HEEDS = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_fit_that_would_not_end(resnet):
    """The signal comes from a process that waits until the fit is under way."""
    script = """
import sys, tightfit
graph = tightfit.read_graph(sys.argv[1])
print("ready", flush=True)
try:
    tightfit.fit(graph, "50%", deadline=100_000)
except KeyboardInterrupt:
    fitted = tightfit.fit(graph, "60%", iterations=1000)  # nothing is left that would stop this one
    print("interrupted", fitted.peak <= fitted.budget, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(RESNET)], stdout=subprocess.PIPE, text=True,
                          preexec_fn=HEEDS) as child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        try:
            assert child.communicate(timeout=120)[0] == "interrupted True\n"
        finally:
            child.kill()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="nothing tells when the program handles Ctrl-C")
def test_ctrl_c_ends_the_program_in_order():
    """The best plan so far is printed, as by the program without Python around it; on a very slow machine there may be
    none yet."""
    words = [*program.own(), "plan", str(RESNET), "--budget", "50%", "--deadline", "100000s", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=HEEDS) as child:
        handles_it(child)
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=120)
        finally:
            child.kill()
    assert child.returncode == 130 and "Traceback" not in err
    assert json.loads(out)["interrupted"] is True if out else "interrupted before a plan was found" in err


def handles_it(child: subprocess.Popen) -> None:
    """Returns when the program handles signals: Python handles Ctrl-C before it does, but never SIGTERM."""
    status = Path(f"/proc/{child.pid}/status")
    while child.poll() is None:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)):
            return
        time.sleep(0.01)
    raise AssertionError("the program ended")


def test_two_fits_go_on_at_once(resnet):
    """A search that held the interpreter's lock would keep other threads from counting, and from starting."""
    answers: list = []
    begun: list = []

    def search() -> None:
        begun.append(True)
        answers.append(tightfit.fit(resnet, "50%", deadline=1.0))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    ticks = 0
    while any(thread.is_alive() for thread in threads):
        ticks += len(begun) == 2 and not answers
        time.sleep(0.001)
    assert ticks > 10, "this thread saw both searches under way, and went on itself"
    assert [answer.peak <= answer.budget for answer in answers] == [True, True]


def test_the_program_takes_arguments_and_fails_as_programs_do(tmp_path):
    help_ = run("--help")
    assert help_.returncode == 0 and b"Usage: tightfit " in help_.stdout and not help_.stderr
    wrong = run("plan")
    assert wrong.returncode == 2 and b"Usage: tightfit plan" in wrong.stderr and not wrong.stdout
    missing = run("plan", tmp_path / "nothing", "--budget", "60%")
    assert missing.returncode == 4 and missing.stderr.startswith(b"error: ") and not missing.stdout
    odd = run("plan", os.fsdecode(b"\xff\xfe"), "--budget", "60%")
    assert odd.returncode == 4 and b"Traceback" not in odd.stderr


def test_a_reader_that_goes_away_ends_the_program_quietly():
    words = [*program.own(), "modules", str(RESNET), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(timeout=120) == 4


def test_a_full_disk_is_one_message():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    with full.open("wb") as out:
        ran = subprocess.run([*program.own(), "modules", str(RESNET)], stdout=out, stderr=subprocess.PIPE, timeout=120, check=False)
    assert ran.returncode == 4 and ran.stderr.startswith(b"error: standard output: ")


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built; `cargo xtask ci test` does")
@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["--version"], ["plan"], ["fly"], ["plan", "x", "--budget", "0"], []], ids=str)
def test_the_installed_command_is_the_binary(words):
    command = Path(sys.executable).with_name("tightfit")
    ours, theirs = run(*words, command=[str(command)]), run(*words, command=[str(BINARY)])
    if words == ["--version"]:  # a release also prints its commit, builds for tests do not
        assert ours.stdout.split()[:2] == theirs.stdout.split()[:2] == [b"tightfit", tightfit.__version__.encode()]
        return
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_a_step_runs_with_the_program_of_the_package(tmp_path):
    """It starts itself again to measure: this package's program, not the process that runs it."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    words = ["train", STEP, "--budget", "100%", "--steps", "2", "--eval-batches", "0", "--json"]
    ran = run(*words, env=environment)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len([line for line in lines if "loss" in line]) >= 2
    assert any((tmp_path / "tightfit").glob("cpu-*.json")), "the processor was measured"
    assert any((tmp_path / "tightfit").glob("calls-*.json")), "the step's calls were measured"
