// Hovering, touching and keys select an instant of a plot; the panel shows what is alive there.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const panel = document.getElementById("instant");
  const ROWS = 12;

  // As Rust rounds: ties go to the even neighbour.
  const tenths = (x) => {
    const low = Math.floor(x * 10), rest = x * 10 - low;
    return ((rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low) / 10).toFixed(1);
  };
  const bytes = (n) => {
    if (n < 1024) return n + " B";
    let unit = 0;
    for (n /= 1024; n >= 1024 && unit < 4; unit++) n /= 1024;
    return tenths(n) + " " + ["KiB", "MiB", "GiB", "TiB", "PiB"][unit];
  };
  const duration = (s) => s >= 1 ? s.toFixed(2) + " s" : s >= 1e-3 ? (s * 1e3).toFixed(1) + " ms" : (s * 1e6).toFixed(1) + " µs";
  const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  const element = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    made.append(...children);
    return made;
  };
  const size = (n) => element("data", { value: n }, bytes(n));
  // Names break behind dots and underscores.
  const breakable = (name) => name.split(/(?<=[._/])/).flatMap((part, index) => index ? [element("wbr", {}), part] : [part]);

  // How long a call takes; and from which call to which something is held.
  const taken = (side, call) => data.times[data.nodes.time[side.calls[call] >> 1]];
  const named = (side, call) => data.nodes.name[side.calls[call] >> 1];
  const places = (held) => {
    const count = held.node.length, first = new Int32Array(count), last = new Int32Array(count);
    for (let i = 0, at = 0; i < count; i++) {
      first[i] = at += held.first[i];
      last[i] = at + held.span[i];
    }
    return { first, last };
  };

  const sides = data.sides.map((side) => {
    const count = side.calls.length, held = side.held, lives = held.node.length;
    const starts = new Float64Array(count + 1), total = new Float64Array(count + 1), waits = new Map(side.waits);
    for (let i = 0; i <= count; i++) starts[i] = (i && starts[i - 1] + taken(side, i - 1)) + (waits.get(i) || 0) / 1e9;
    const { first, last } = places(held);
    for (let i = 0; i < lives; i++) {
      total[first[i]] += data.sizes[held.size[i]];
      total[last[i] + 1] -= data.sizes[held.size[i]];
    }
    for (let i = 1; i < count; i++) total[i] += total[i - 1];
    const area = document.querySelector('.area[data-side="' + side.key + '"]');
    const strip = document.querySelector('.lanes[data-side="' + side.key + '"]');
    const below = side.below && { held: side.below, ...places(side.below) };
    const tag = area.closest("figure").querySelector(".tag span");
    return { ...side, count, starts, total, first, last, waits, below, area, strip, tag, at: side.peak, cursors: [], mirrors: [] };
  });
  const longest = Math.max(...sides.map((side) => side.starts[side.count])) || 1;

  const alive = (side, call) => {
    const found = [];
    for (let i = 0; i < side.first.length && side.first[i] <= call; i++) {
      if (side.last[i] < call) continue;
      const node = side.held.node[i], workspace = data.roles[side.held.role[i]] === "workspace";
      found.push({
        name: data.nodes.name[node] + (workspace ? " (workspace)" : ""), module: data.modules[data.nodes.module[node]],
        role: side.held.role[i], bytes: data.sizes[side.held.size[i]],
      });
    }
    return found.sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  };

  const show = (side, call) => {
    const node = side.calls[call] >> 1, again = side.calls[call] & 1, tensors = alive(side, call);
    const module = data.modules[data.nodes.module[node]] || "(root)", start = side.starts[call];
    const roles = data.roles.map((name, role) => ({ name, role, bytes: 0 }));
    for (const tensor of tensors) roles[tensor.role].bytes += tensor.bytes;
    const measured = side.measured ? ", measured " + duration(side.measured.time[call] / 1e9) + " at " + duration(side.measured.start[call] / 1e9) : "";
    const facts = element("div", {},
      element("h3", { id: "node" }, ...breakable(data.nodes.name[node] + (again ? " (recomputed)" : ""))),
      element("p", { class: "soft" }, ...breakable(data.ops[data.nodes.op[node]] + " · " + data.phases[data.nodes.phase[node]] + " · module " + module)),
      element("p", {}, side.name + ", call " + grouped(call + 1) + " of " + grouped(side.count) + ": " + duration(start) + " into the step, takes "
        + duration(taken(side, call)) + (side.waits.has(call) ? ", after waiting " + duration(side.waits.get(call) / 1e9) + " for a transfer" : "")
        + measured),
      element("p", {}, element("b", { id: "held" }, size(side.total[call])), " held (" + grouped(side.total[call]) + " bytes)"
        + (call === side.peak ? ", the peak" : "")));
    const list = element("ul", { class: "held", id: "roles" });
    for (const { name, role, bytes } of roles.filter((role) => role.bytes)) {
      list.append(element("li", { "data-role": name }, element("span", {}, element("i", { class: "r" + role }), name), size(bytes)));
    }
    facts.append(list);
    if (side.below) facts.append(...beside(side, call));
    const body = element("tbody", {});
    for (const tensor of tensors.slice(0, ROWS)) {
      body.append(element("tr", {},
        element("td", { class: "held" }, element("i", { class: "r" + tensor.role, title: data.roles[tensor.role] }), element("b", {}, ...breakable(tensor.name)),
          element("small", {}, ...breakable((tensor.module || "(root)") + " · " + data.roles[tensor.role]))),
        element("td", { class: "n" }, size(tensor.bytes))));
    }
    const rest = tensors.slice(ROWS).reduce((sum, tensor) => sum + tensor.bytes, 0);
    if (tensors.length > ROWS) {
      body.append(element("tr", { class: "rest" }, element("td", {}, grouped(tensors.length - ROWS) + " more"), element("td", { class: "n" }, size(rest))));
    }
    const table = element("table", { id: "alive", "data-count": tensors.length }, element("caption", {}, "alive there"), body);
    panel.replaceChildren(element("div", { class: "pair" }, facts, table));
  };

  // What lies below the slab at a call, and what moves while it runs.
  const beside = (side, call) => {
    const lies = alive(side.below, call), from = side.starts[call], to = from + taken(side, call), whole = side.starts[side.count];
    const roles = new Map();
    for (const { role, bytes } of lies) roles.set(role, (roles.get(role) || 0) + bytes);
    const of = [...roles].sort((a, b) => b[1] - a[1]).map(([role, n]) => bytes(n) + " " + data.roles[role]).join(", ");
    const during = side.moves.filter(([, , start, time]) => {
      start /= 1e9, time /= 1e9;
      return start < to && start + time > from || start - whole < to && start - whole + time > from;
    });
    const moving = during.slice(0, 3).map(([node, leaves, , , size]) => data.nodes.name[node] + " (" + bytes(data.sizes[size]) + (leaves ? ", to the tier)" : ", back)"));
    if (during.length > 3) moving.push(grouped(during.length - 3) + " more");
    return [
      element("p", { id: "below" }, element("b", {}, size(lies.reduce((sum, held) => sum + held.bytes, 0))), " below the slab" + (of && ": " + of)),
      element("p", { class: "soft" }, "Moving meanwhile: " + (moving.join(", ") || "nothing")),
    ];
  };

  // The part of the step that the drawings show, in seconds; all drawings show the same.
  const view = { from: 0, to: longest };
  const share = (seconds) => (seconds - view.from) / (view.to - view.from);
  const middle = (side, call) => side.starts[call] + taken(side, call) / 2;
  const put = (mark, at) => {
    mark.hidden = at < 0 || at > 1;
    mark.style.left = at * 100 + "%";
  };

  // Where another drawing runs the same node, or a chunk of it: for the first time, or as often as here.
  const partner = (side, call, other) => {
    const whole = (side, call) => named(side, call).replace(/(\.into|\.total)?\.chunk\d+$/, "");
    const name = whole(side, call);
    let run = 0, last = -1;
    for (let i = 0; i <= call; i++) run += whole(side, i) === name;
    for (let i = 0; i < other.count && run; i++) if (whole(other, i) === name) last = i, run--;
    return last;
  };

  const mark = (side) => {
    const at = share(middle(side, side.at));
    for (const other of sides) {
      for (const cursor of other.cursors) if (other === side) put(cursor, at); else cursor.hidden = true;
      const call = other === side ? -1 : partner(side, side.at, other);
      for (const mirror of other.mirrors) put(mirror, call < 0 ? -1 : share(middle(other, call)));
      if (other.tip) other.tip.hidden = other !== side || at < 0 || at > 1;
    }
    if (!side.tip) return;
    side.tip.replaceChildren(element("b", {}, ...breakable(named(side, side.at))), " ", bytes(side.total[side.at]));
    side.tip.style.left = at > 0.5 ? "auto" : "calc(" + at * 100 + "% + 8px)";
    side.tip.style.right = at > 0.5 ? "calc(" + (1 - at) * 100 + "% + 8px)" : "auto";
  };

  const select = (side, call) => {
    side.at = Math.max(0, Math.min(side.count - 1, call));
    current = side;
    mark(side);
    side.area.setAttribute("aria-valuenow", side.at + 1);
    side.area.setAttribute("aria-valuetext", named(side, side.at) + ", " + bytes(side.total[side.at]) + " held");
    show(side, side.at);
  };
  let current = sides[sides.length - 1];

  // Among the calls under one pixel the one that holds most: the one that is drawn.
  const moment = (side, clientX) => {
    const box = side.area.getBoundingClientRect();
    return view.from + (clientX - box.left) / box.width * (view.to - view.from);
  };
  const under = (side, clientX) => {
    const pixel = (view.to - view.from) / side.area.getBoundingClientRect().width, from = moment(side, clientX);
    let low = 0, high = side.count - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (side.starts[middle + 1] <= from) low = middle + 1; else high = middle;
    }
    let best = low;
    for (let i = low; i < side.count && side.starts[i] < from + pixel; i++) if (side.total[i] > side.total[best]) best = i;
    return best;
  };

  // Round moments along the axis of the part that is shown.
  const moments = () => {
    const width = view.to - view.from;
    const steps = [...Array(21).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** (power - 12)));
    const step = steps.find((step) => width / step <= 5) || width;
    const [unit, name] = view.to >= 1 ? [1, "s"] : view.to >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    const digits = Math.max(0, Math.ceil(-Math.log10(step * unit) - 1e-9));
    const all = [];
    for (let i = Math.ceil(view.from / step - 1e-9); i * step <= view.to * (1 + 1e-9); i++) {
      all.push([share(i * step), i ? (i * step * unit).toFixed(digits) + " " + name : "0"]);
    }
    return all;
  };

  // Shows a part of the step, or all of it.
  const zoom = (from, to) => {
    const least = Math.min(...sides.map((side) => side.starts[side.count] / Math.max(1, side.count))) * 4 || longest;
    const width = Math.min(longest, Math.max(to - from, least));
    view.from = Math.max(0, Math.min(from, longest - width));
    view.to = view.from + width;
    const isWhole = width >= longest;
    for (const side of sides) {
      for (const drawing of [side.area, side.strip].filter(Boolean).flatMap((place) => [...place.querySelectorAll("svg")])) {
        if (!drawing.whole) drawing.whole = drawing.getAttribute("viewBox").split(" ").map(Number);
        const [, top, wide, high] = drawing.whole;
        drawing.setAttribute("viewBox", [view.from / longest * wide, top, width / longest * wide, high].join(" "));
      }
      side.area.classList.toggle("zoomed", !isWhole);
      const axis = side.area.parentElement.querySelector(".horizontal");
      if (!axis.whole) axis.whole = [...axis.children];
      axis.replaceChildren(...isWhole ? axis.whole : moments().map(([at, label]) =>
        element("span", { class: at > 0.9 ? "edge" : at < 0.1 ? "start" : "", style: "left:" + (at * 100).toFixed(2) + "%" }, label)));
      if (side.tag && side.count) put(side.tag, share(middle(side, side.peak)));
    }
    whole.disabled = isWhole;
    if (current.count) mark(current);
  };
  const nearer = (factor) => {
    const at = middle(current, current.at), width = (view.to - view.from) * factor;
    zoom(at - width / 2, at + width / 2);
  };
  const whole = element("button", { type: "button", disabled: "" }, "Whole step");
  whole.addEventListener("click", () => zoom(0, longest));
  const closer = element("button", { type: "button" }, "Zoom in"), wider = element("button", { type: "button" }, "Zoom out");
  closer.addEventListener("click", () => nearer(1 / 2));
  wider.addEventListener("click", () => nearer(2));

  // The address names the instant, so that it can be sent to somebody; browsers take few changes of it in a second.
  let waiting = 0;
  const remember = (side) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const node = named(side, side.at);
      const run = side.calls.slice(0, side.at + 1).filter((_, call) => named(side, call) === node).length;
      history.replaceState(null, "", "#" + new URLSearchParams({ side: side.key, node, run }));
    }, 300);
  };

  const follow = () => {
    const place = new URLSearchParams(location.hash.slice(1));
    const side = sides.find((side) => side.key === place.get("side")) || sides[sides.length - 1];
    let run = Number(place.get("run") || 1);
    const call = side.calls.findIndex((_, call) => named(side, call) === place.get("node") && --run <= 0);
    if (side.count) select(side, call < 0 ? side.peak : call);
  };

  for (const side of sides) {
    for (const place of [side.area, side.strip && element("div", { class: "over" })]) {
      if (!place) continue;
      if (place !== side.area) side.strip.append(place);
      side.cursors.push(element("i", { class: "cursor" }));
      side.mirrors.push(element("i", { class: "mirror" }));
      place.append(side.cursors[side.cursors.length - 1], side.mirrors[side.mirrors.length - 1]);
    }
    if (!side.count) continue;
    side.tip = element("span", { class: "tip", "aria-hidden": "true" });
    side.brush = element("i", { class: "brush", hidden: "" });
    side.area.append(side.tip, side.brush);
    side.area.setAttribute("role", "slider");
    side.area.setAttribute("tabindex", "0");
    side.area.setAttribute("aria-valuemin", "1");
    side.area.setAttribute("aria-valuemax", side.count);
    side.area.setAttribute("aria-valuenow", side.at + 1);
    // Dragging selects a part to zoom to.
    let begun = null;
    const brushed = (event) => [begun, moment(side, event.clientX)].sort((a, b) => a - b).map((at) => Math.max(view.from, Math.min(view.to, at)));
    side.area.addEventListener("pointermove", (event) => {
      select(side, under(side, event.clientX));
      if (begun === null) return;
      const [from, to] = brushed(event);
      side.brush.hidden = false;
      side.brush.style.left = share(from) * 100 + "%";
      side.brush.style.width = (share(to) - share(from)) * 100 + "%";
    });
    side.area.addEventListener("pointerdown", (event) => {
      select(side, under(side, event.clientX));
      remember(side);
      begun = moment(side, event.clientX);
    });
    const end = (event) => {
      if (begun !== null && event.type === "pointerup") {
        const [from, to] = brushed(event);
        if (share(to) - share(from) > 0.02) zoom(from, to);
      }
      begun = null;
      side.brush.hidden = true;
    };
    for (const type of ["pointerup", "pointercancel", "pointerleave"]) side.area.addEventListener(type, end);
    side.area.addEventListener("dblclick", () => zoom(0, longest));
    side.area.addEventListener("keydown", (event) => {
      const page = Math.max(1, Math.round(side.count / 20));
      const to = {
        ArrowLeft: side.at - 1, ArrowDown: side.at - 1, ArrowRight: side.at + 1, ArrowUp: side.at + 1,
        PageDown: side.at - page, PageUp: side.at + page, Home: 0, End: side.count - 1, p: side.peak,
      }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const scale = { "+": 1 / 2, "-": 2 }[event.key];
      if (scale) nearer(scale);
      if (event.key === "0") zoom(0, longest);
      if (to === undefined) return;
      event.preventDefault();
      select(side, to);
      remember(side);
    });
    side.area.addEventListener("focus", () => select(side, side.at));
  }
  const hint = element("span", { class: "soft" }, "Drag over a drawing to zoom; double-click for the whole step.");
  const first = document.querySelector(".area[data-side]");
  if (first) first.closest("figure").before(element("div", { class: "zoom" }, closer, wider, whole, hint));
  addEventListener("hashchange", follow);
  follow();
})();
