"""The report in a browser: what it shows on hovering is what `tightfit analyze` and the plan contain.

Invariant: the page itself is not changed; a script appended to a copy moves the pointer and presses keys, and its
findings are taken from the page as the browser left it. Without Chromium these tests are skipped, and say so.

Tier: quick with a part of the cases, 44 s; full with all of them.
"""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tier import cases, full

ROOT = Path(__file__).resolve().parents[2]
BERT = "corpus/graphs/bert_base_drop_b16_s512.json.gz"
LLAMA = "corpus/graphs/llama_1b_b2_s2048.json.gz"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="NO BROWSER: install Chromium (Debian: apt install chromium) to test the report's page"),
    pytest.mark.skipif("TIGHTFIT_BIN" not in os.environ, reason="TIGHTFIT_BIN does not name the program; `cargo xtask ci python` does"),
]


def tightfit(*arguments) -> str:
    """What the program prints."""
    command = [os.environ["TIGHTFIT_BIN"], *map(str, arguments)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def browse(page: Path, folder: Path, *flags: str) -> tuple[str, str]:
    """The document after its scripts have run, and what the browser logged."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1500,1200", *flags]
    ran = subprocess.run([*command, "--dump-dom", f"file://{page}"], capture_output=True, text=True, timeout=240)
    assert "<html" in ran.stdout, ran.stderr
    return ran.stdout, ran.stderr


def complaints(log: str) -> list[str]:
    return [line for line in log.splitlines() if ":CONSOLE" in line]


# Runs after the page's own script; its findings become text of the page.
DRIVER = """<script>
(() => {
  const seen = [];
  const rows = (query) => [...document.querySelectorAll(query)];
  const read = () => ({
    node: document.getElementById("node").textContent,
    held: Number(document.querySelector("#held data").value),
    roles: rows("#roles li").map((li) => [li.dataset.role, Number(li.querySelector("data").value)]),
    alive: rows("#alive tr:not(.rest)").map((tr) => [
      tr.querySelector("b").textContent, tr.querySelector("small").textContent.split(" · ")[0], Number(tr.querySelector("data").value)]),
    rest: rows("#alive .rest data").map((data) => Number(data.value))[0] || 0,
    count: Number(document.getElementById("alive").dataset.count),
    label: document.querySelector(".cursor:not([hidden])").parentElement.getAttribute("aria-valuetext"),
  });
  const hover = (side, share) => {
    const area = document.querySelector('.area[data-side="' + side + '"]'), box = area.getBoundingClientRect();
    const clientX = box.left + share * box.width, clientY = box.top + box.height / 2;
    area.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, bubbles: true }));
    seen.push(read());
  };
  const press = (side, key) => {
    document.querySelector('.area[data-side="' + side + '"]').dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    seen.push(read());
  };
  STEPS
  const overflow = rows("body *").filter((e) => !e.closest(".scroll, .zoomed svg") && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 200));
  const boxes = (query) => rows(query).map((e) => [e, e.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  const overlaps = [];
  for (const frame of rows("figure")) {
    const labels = boxes(".vertical span, .horizontal span, .tag span, .lanes > span, figcaption").filter(([e]) => frame.contains(e));
    for (const [i, [a, p]] of labels.entries()) for (const [b, q] of labels.slice(i + 1)) {
      const across = Math.min(p.right, q.right) - Math.max(p.left, q.left), down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (across > 1 && down > 1) overlaps.push(a.textContent + " | " + b.textContent);
    }
  }
  // The page changes its address a little later.
  setTimeout(() => {
    parent.postMessage(JSON.stringify({ seen, overflow, overlaps, hash: location.hash, width: innerWidth }), "*");
  }, 1000);
})();
</script>
</body>"""


# A window is never narrower than some 500 pixels, but a frame within it can be; what it posts becomes text of this
# page.
FRAME = """<!DOCTYPE html><html lang="en"><body><iframe src="driven.html{fragment}" width="{width}" height="{height}" style="border:0"></iframe>
<pre id="seen"></pre><script>addEventListener("message", (event) => {{ document.getElementById("seen").textContent = event.data; }});</script></body></html>"""


def drive(page: Path, folder: Path, steps: str, *flags: str, size: tuple[int, int] = (1400, 1000), fragment: str = "") -> dict:
    """Runs the steps in a copy of the page and returns the findings; the console must stay empty."""
    text = page.read_text()
    assert text.count("</body>") == 1
    (folder / "driven.html").write_text(text.replace("</body>", DRIVER.replace("STEPS", steps)))
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=size[0], height=size[1], fragment=html.escape(fragment)))
    document, log = browse(frame, folder, *flags)
    assert not complaints(log), log
    found = re.search(r'<pre id="seen">(.+?)</pre>', document, re.DOTALL)
    assert found, "the script did not come to its end"
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("report")
    plan, page = folder / "plan.json", folder / "report.html"
    planned = json.loads(tightfit("plan", LLAMA, "--budget", "60%", "--iterations", "300000", "--json", "-o", plan))
    tightfit("report", LLAMA, "--plan", plan, "--points", "4", "--deadline", "200ms", "-o", page)
    return {"folder": folder, "page": page, "planned": planned, "analyzed": json.loads(tightfit("analyze", LLAMA, "--json"))}


def test_the_page_is_small_and_silent(llama):
    assert llama["page"].stat().st_size < 3_000_000
    document, log = browse(llama["page"], llama["folder"])
    assert not complaints(log), log
    assert 'role="slider"' in document


def runs(analyzed: dict) -> list[dict]:
    """The rows of the nodes that run, in program order."""
    return [node for node in analyzed["nodes"] if node["rank"] is not None]


def test_hovering_shows_what_analyze_says(llama):
    analyzed = llama["analyzed"]
    seconds = [node["seconds"] for node in runs(analyzed)]
    names = [node["name"] for node in runs(analyzed)]
    at = names.index(analyzed["peak_node"])
    # The plots share the scale of the slower step.
    longest = max(analyzed["step_seconds"], llama["planned"]["step_seconds"])
    share = (sum(seconds[:at]) + seconds[at] / 2) / longest
    seen = drive(llama["page"], llama["folder"], f'hover("before", {share}); press("before", "ArrowRight"); press("before", "p"); press("after", "p");')["seen"]
    peak, later, back, planned = seen

    assert peak["node"] == analyzed["peak_node"]
    assert peak["held"] == analyzed["peak_bytes"] == sum(size for _, size in peak["roles"])
    assert analyzed["peak_node"] in peak["label"]
    live = analyzed["live"]
    assert peak["count"] == len(live)
    assert [(name, size) for name, _, size in peak["alive"]] == [(tensor["name"], tensor["bytes"]) for tensor in live[: len(peak["alive"])]]
    # Placeholders have no module of their own: the page shows the first module that reads them, the analysis the module
    # that contains all readers.
    for (_, module, _), tensor in zip(peak["alive"], live):
        is_shared = tensor["phase"] in ("parameter", "buffer") and module.startswith(f"{tensor['module']}.")
        assert not tensor["module"] or module == tensor["module"] or is_shared, (module, tensor)
    assert peak["rest"] == sum(tensor["bytes"] for tensor in live[len(peak["alive"]) :])

    assert later["node"] == names[at + 1] and back == peak
    assert planned["held"] == llama["planned"]["peak_bytes"]


def test_every_operator_is_where_analyze_has_it(llama):
    analyzed = llama["analyzed"]
    nodes = runs(analyzed)
    count = len(nodes)
    keys = f'press("before", "Home"); for (let i = 1; i < {count}; i++) press("before", "ArrowRight");'
    seen = drive(llama["page"], llama["folder"], keys)["seen"]
    assert [one["node"] for one in seen] == [node["name"] for node in nodes]
    assert [one["held"] for one in seen] == [node["active_bytes"] for node in nodes]
    assert all(sum(size for _, size in one["roles"]) == one["held"] for one in seen)


def test_an_address_names_an_instant(llama):
    peak = llama["analyzed"]["peak_node"]
    found = drive(llama["page"], llama["folder"], "seen.push(read());", fragment=f"#side=before&node={peak}&run=1")
    assert found["seen"][0]["node"] == peak
    assert found["seen"][0]["held"] == llama["analyzed"]["peak_bytes"]
    found = drive(llama["page"], llama["folder"], 'press("before", "End"); press("before", "Home");')
    assert found["hash"] == f"#side=before&node={runs(llama['analyzed'])[0]['name']}&run=1"


@pytest.mark.parametrize("size", cases((1400, 1000), (360, 740), full=[((390, 844),)]))
@pytest.mark.parametrize("scheme", cases("0", full=["1"]))
def test_labels_do_not_overlap_and_nothing_is_cut_off(llama, size, scheme):
    found = drive(llama["page"], llama["folder"], "", f"--blink-settings=preferredColorScheme={scheme}", size=size)
    assert found["width"] == size[0]
    assert found["overlaps"] == [] and found["overflow"] == []


@pytest.fixture(scope="module")
def tiered(tmp_path_factory) -> dict:
    """A page with lanes, and the events of the step's trace."""
    folder = tmp_path_factory.mktemp("tiered")
    plan, page, trace = folder / "plan.json", folder / "report.html", folder / "trace.json"
    on = ["--machine", "a100-80gb", "--tier", "pcie4"]
    tightfit("plan", BERT, "--budget", "30%", *on, "--iterations", "300000", "-o", plan)
    tightfit("report", BERT, "--plan", plan, *on, "--points", "0", "-o", page)
    tightfit("trace", BERT, "--plan", plan, *on, "-o", trace)
    return {"folder": folder, "page": page, "events": json.loads(trace.read_text())["traceEvents"]}


@full
def test_what_lies_below_is_shown_for_the_selected_call(tiered):
    counters = [event["args"] for event in tiered["events"] if event["name"] == "memory below"]
    calls = [event for event in tiered["events"] if event.get("cat") in ("run", "recompute")]
    moved = [event for event in tiered["events"] if event.get("cat") in ("out", "back")]
    assert moved and len(counters) == len(calls) + 1
    look = 'seen[seen.length - 1].below = Number(document.querySelector("#below data").value); seen[seen.length - 1].text = document.querySelector("#below + p").textContent;'
    steps = f'press("after", "Home"); {look} for (let i = 1; i < {len(calls)}; i++) {{ press("after", "ArrowRight"); {look} }}'
    found = drive(tiered["page"], tiered["folder"], steps)
    assert found["overlaps"] == [] and found["overflow"] == []
    assert [one["below"] for one in found["seen"]] == [sum(roles.values()) for roles in counters[:-1]]
    # Transfers during a call are listed there, unless there are too many.
    begin, end = calls[len(calls) // 2]["ts"], calls[len(calls) // 2]["ts"] + calls[len(calls) // 2]["dur"]
    meanwhile = [event["name"] for event in moved if event["ts"] < end and event["ts"] + event["dur"] > begin]
    text = found["seen"][len(calls) // 2]["text"]
    assert text == "Moving meanwhile: nothing" if not meanwhile else any(name in text for name in meanwhile)


@pytest.mark.parametrize("size", [(1400, 1000), (360, 740)])
def test_labels_of_lanes_do_not_overlap(tiered, size):
    found = drive(tiered["page"], tiered["folder"], "", size=size)
    assert found["overlaps"] == [] and found["overflow"] == []


def test_labels_that_overlap_would_be_found(llama):
    large = 'const style = document.createElement("style"); style.textContent = ".vertical span{font-size:70px}"; document.head.append(style);'
    assert drive(llama["page"], llama["folder"], large)["overlaps"] != []


def test_the_page_prints(llama):
    folder = llama["folder"]
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile"]
    subprocess.run([*command, f"--print-to-pdf={folder}/report.pdf", f"file://{llama['page']}"], capture_output=True, timeout=240, check=True)
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")


# The place of another plot's selection in a plot, and the times on its axis.
LOOK = """
const places = (query) => rows(query).filter((e) => !e.hidden).map((e) => e.closest("[data-side]").dataset.side);
const axis = (side) => [...document.querySelectorAll('.area[data-side="' + side + '"] ~ .horizontal span')].map((e) => e.textContent);
const tip = (side) => document.querySelector('.area[data-side="' + side + '"] .tip').textContent;
const drag = (side, from, to) => {
  const area = document.querySelector('.area[data-side="' + side + '"]'), box = area.getBoundingClientRect();
  const event = (type, share) => area.dispatchEvent(new PointerEvent(type, { clientX: box.left + share * box.width, clientY: box.top + 9, bubbles: true }));
  event("pointerdown", from); event("pointermove", to); event("pointerup", to);
};
const look = (side) => Object.assign(seen[seen.length - 1], { mirrors: places(".mirror"), axis: axis(side), tip: tip(side) });
"""


def test_other_drawings_show_the_same_node(llama):
    peak, *_ = drive(llama["page"], llama["folder"], LOOK + 'press("before", "p"); look("before");')["seen"]
    assert peak["mirrors"] == ["after"]
    assert peak["tip"].startswith(peak["node"]) and "GiB" in peak["tip"]


def test_zooming_keeps_what_is_under_the_pointer(llama):
    steps = LOOK + """
      hover("before", 0.3); look("before");
      drag("before", 0.2, 0.4); hover("before", 0.5); look("before");
      document.querySelector(".zoom button:last-of-type").click(); hover("before", 0.3); look("before");
      press("before", "+"); press("before", "+"); look("before"); press("before", "0"); hover("before", 0.3); look("before");"""
    found = drive(llama["page"], llama["folder"], steps)
    before, zoomed, whole, *_, last = found["seen"]
    nodes = [node["name"] for node in runs(llama["analyzed"])]
    assert abs(nodes.index(before["node"]) - nodes.index(zoomed["node"])) < 30, "the same moment, but for a pixel"
    assert zoomed["axis"] != before["axis"] == whole["axis"] == last["axis"]
    assert whole["node"] == before["node"] == last["node"]
    assert found["overflow"] == []


def test_labels_of_a_part_do_not_overlap(llama):
    found = drive(llama["page"], llama["folder"], LOOK + 'drag("after", 0.1, 0.2);', size=(390, 844))
    assert found["overlaps"] == [] and found["overflow"] == []


def test_two_plans_stand_side_by_side(llama):
    folder, page, plan = llama["folder"], llama["folder"] / "two.html", llama["folder"] / "larger.json"
    larger = json.loads(tightfit("plan", LLAMA, "--budget", "80%", "--iterations", "300000", "--json", "-o", plan))
    tightfit("report", LLAMA, "--plan", folder / "plan.json", "--plan", plan, "--points", "0", "-o", page)
    seen = drive(page, folder, LOOK + 'press("after", "p"); look("after"); press("after2", "p"); look("after2");')
    small, large = seen["seen"]
    assert [small["held"], large["held"]] == [llama["planned"]["peak_bytes"], larger["peak_bytes"]]
    assert small["mirrors"] == ["before", "after2"] and large["mirrors"] == ["before", "after"]
    assert "Planned, larger" in page.read_text() and seen["overlaps"] == [] and seen["overflow"] == []
