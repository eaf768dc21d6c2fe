// Draws the JSON document of the page: what `--json` prints, or one tensor. Whatever comes from the
// document becomes text or the value of an attribute, never markup.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const view = document.documentElement.dataset.view; // page, program, tensor or ledger
// The mesh, {axis: size}; the order of the axes gives their colours.
const mesh = new Map(data.axes ? data.axes.map((axis) => [axis.name, axis.size]) : data.mesh);
const PHASES = ["forward", "recompute", "backward", "gradient", "optimizer"];

// -- Elements ----------------------------------------------------------------------------------

const IN_SVG = new Set("svg title defs pattern path rect circle g text tspan".split(" "));

// An element: tag("p.quiet", {title: "x"}, "text"). Plain objects are attributes, nothing is null.
function tag(what, ...children) {
  const [name, ...classes] = what.split(".");
  const made = IN_SVG.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  made.classList.add(...classes);
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node || typeof child !== "object") made.append(child);
    else Object.entries(child).forEach(([key, value]) => setAttribute(made, key, value));
  }
  return made;
}

// Sets an attribute; classes are added, a style is an object, null and false leave it out.
function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "class") element.classList.add(...value.split(" ").filter(Boolean));
  else if (name === "style") {
    Object.entries(value).forEach(([key, to]) => element.style.setProperty(key, to));
  } else if (value === true) element.setAttribute(name, "");
  else element.setAttribute(name, typeof value === "number" ? short(value) : value);
}

// A picture with its title for those who cannot see it.
function svg(title, width, height, ...children) {
  const box = `0 0 ${short(width)} ${short(height)}`;
  return tag("svg", { viewBox: box, width, height, role: "img" }, tag("title", title), children);
}

// What may be wider than the screen: it scrolls, by keys too.
function scroll(label, ...children) {
  return tag("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, children);
}

// What is folded at first.
function folded(summary, ...children) {
  return tag("details.more", tag("summary", summary), children);
}

// A list of terms and what is said of each; those of which nothing is said are left out.
function facts(rows) {
  return tag("dl.facts", rows.map(([name, said]) => said && [tag("dt", name), tag("dd", said)]));
}

// A table. A column is [heading, class], a row a list of cells.
function table(columns, rows) {
  const head = columns.map(([name, css]) => tag("th", { scope: "col", class: css }, name));
  return tag("table.data", tag("thead", tag("tr", head)), tag("tbody", rows.map(row)));
}

// A row of a table, whose cells may be those of a table already.
function row(cells) {
  const isCell = (cell) => cell instanceof HTMLTableCellElement;
  return tag("tr", cells.map((cell) => (isCell(cell) ? cell : tag("td", cell))));
}

// A cell with a figure; tables sort by its value.
function figure(text, value) {
  return tag("td.figure", { "data-value": String(value) }, text);
}

// -- Lists and figures -------------------------------------------------------------------------

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
const most = (numbers, least) => numbers.reduce((a, b) => Math.max(a, b), least);
const range = (n) => Array.from({ length: n }, (_, i) => i);
const clamp = (value, least, largest) => Math.min(Math.max(value, least), largest);
const short = (value) => String(Math.round(value * 100) / 100);
const commas = (count) => Math.round(count).toLocaleString("en-US");
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
const digits = (value, n) => Number(value.toPrecision(n));
const length = (part, whole) => ({ width: `${((100 * part) / whole).toFixed(3)}%` });

// The items with something between each two.
function between(items, made) {
  return items.flatMap((item, i) => (i ? [made(), item] : [item]));
}

// Neighbours that have the same key, as lists.
function runs(items, key) {
  const found = [];
  for (const item of items) {
    if (found.length && key(found.at(-1)[0]) === key(item)) found.at(-1).push(item);
    else found.push([item]);
  }
  return found;
}

// The items by their keys, in the order in which these come first.
function groups(items, key) {
  const found = new Map();
  for (const item of items) found.set(key(item), [...(found.get(key(item)) || []), item]);
  return found;
}

// A number of bytes in powers of 1024: `1.5 MiB`. No line break tears a figure from its unit.
function size(bytes) {
  if (bytes < 1023.5) return `${Math.round(bytes)}\u00a0B`;
  for (const [unit, places] of [["KiB", 1], ["MiB", 1], ["GiB", 2], ["TiB", 2]]) {
    bytes /= 1024;
    if (Number(bytes.toFixed(places)) < 1024) return `${bytes.toFixed(places)}\u00a0${unit}`;
  }
  return `${(bytes / 1024).toFixed(2)}\u00a0PiB`;
}

// A number of FLOPs: `1.1 TFLOP`.
function work(flops) {
  if (flops < 1000) return `${Math.round(flops)}\u00a0FLOP`;
  const units = ["kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"];
  flops /= 1000;
  while (flops >= 999.95 && units.length > 1) {
    flops /= 1000;
    units.shift();
  }
  return `${flops.toFixed(1)}\u00a0${units[0]}`;
}

// A time: `350 µs`, `1.2 ms`; 0 has no unit.
function time(seconds) {
  if (seconds < 1e-9) return seconds > 0 ? "<1\u00a0ns" : "0";
  if (seconds < 0.9995e-3) return `${digits(seconds * 1e6, 3)}\u00a0µs`;
  if (seconds < 0.9995) return `${digits(seconds * 1e3, 4)}\u00a0ms`;
  return `${seconds < 99.95 ? digits(seconds, 3) : commas(seconds)}\u00a0s`;
}

// A count with few digits: `8.03 million`, `205,534`.
function many(count) {
  if (count >= 1e9) return `${digits(count / 1e9, 3)}\u00a0billion`;
  return count >= 1e6 ? `${digits(count / 1e6, 3)}\u00a0million` : commas(count);
}

// What share of a total a part is: `41.2%`; below a tenth of a percent `<0.1%`.
function share(part, total) {
  const value = total ? part / total : 0;
  return value > 0 && value < 0.0005 ? "<0.1%" : percent(value);
}

// A count of things: `1 device`, `8 devices`.
function plural(count, word) {
  return `${commas(count)}\u00a0${word}${count === 1 ? "" : "s"}`;
}

// The rule that caused a collective, without the name of the layout, which heads the page.
function ruleWords(why) {
  return why.replaceAll(`${data.layout}, `, "");
}

// -- Axes and dims: colour means an axis and nothing else; there are letters and patterns too --

const COLOURS = 6; // in the style sheet; further axes share them

// The number of an axis' colour and pattern; the last where the mesh has no such axis.
function colour(name) {
  return mesh.has(name) ? [...mesh.keys()].indexOf(name) % COLOURS : COLOURS - 1;
}

// The classes that colour something by up to two axes.
function axisClass(names) {
  const second = names.length > 1 ? ` b${colour(names[1])}` : "";
  return names.length ? `a${colour(names[0])}${second}` : "none";
}

const fill = (name) => `url(#p-${colour(name)})`;

// Into how many parts the axes split a dim.
function pieces(dim) {
  return product(dim.axes.map((axis) => mesh.get(axis) ?? 1));
}

// The shortest beginning of an axis' name, at most three letters, that no other axis has.
function letters(name) {
  const others = [...mesh.keys()].filter((other) => other !== name);
  const taken = (start) => others.some((other) => other.toLowerCase().startsWith(start));
  const n = [1, 2].find((i) => !taken(name.slice(0, i).toLowerCase())) ?? 3;
  return name[0].toUpperCase() + name.slice(1, n).toLowerCase();
}

// An axis: its letters on its colour, and its name.
function chip(name) {
  const mark = tag("b.mark", { class: axisClass([name]), "aria-hidden": "true" }, letters(name));
  return tag("span.axis", { class: axisClass([name]) }, mark, tag("span", name));
}

const chips = (names) => between(names.map(chip), () => " ");

// A dim with the axes that split it, in their colours: `d_model_data`.
function dimName(dim) {
  return [dim.name, dim.axes.map((axis) =>
    tag("span.by", { class: axisClass([axis]) }, `_${axis}`))];
}

// Dims in brackets: `[batch_data, length]`.
function nest(dims) {
  return tag("code", "[", between(dims.map(dimName), () => [", ", tag("wbr")]), "]");
}

// A name with dims: `table[vocab_model, d_model]`. Lines break after its dots.
function notation(name, dims) {
  const [head] = name.split("[", 1);
  const parts = between(head.split(/(?<=\.)/), () => tag("wbr"));
  const code = tag("code", tag("span.name", parts), name.slice(head.length));
  return dims.length ? [code, nest(dims)] : code;
}

// Strokes and dots on a tile of 8 x 8, one pattern for each colour; a document has them once.
function patterns() {
  const drawn = ["M-2 2 2-2M0 8 8 0M6 10 10 6", "M-2 6 2 10M0 0 8 8M6-2 10 2", null,
    "M2 0V8M6 0V8", "M0 2H8M0 6H8", "M0 0 8 8M8 0 0 8"];
  const dots = () => [2, 6].map((at) => tag("circle.dot", { cx: at, cy: at, r: 1.3 }));
  const made = drawn.map((d, i) => tile(`p-${i}`, `a${i}`, d ? tag("path.stroke", { d }) : dots()));
  return tag("svg.defs", { "aria-hidden": "true" }, tag("title", "patterns of the axes"),
    tag("defs", made));
}

// A pattern that `fill` points to.
function tile(id, css, drawn) {
  const box = { width: 8, height: 8, patternUnits: "userSpaceOnUse" };
  return tag("pattern", { id, class: css }, box, drawn);
}

// -- The head: does it fit, how long is a step, how much of the machine is used ----------------

// What is explained, the verdict with remedies, the figures, and memory and time as bars.
function header(e) {
  const axes = e.axes.map((a) => tag("span.nowrap", chip(a.name), ` ${commas(a.size)} `));
  const said = [e.layout, e.target && `on ${e.target}`].filter(Boolean).join(" ");
  return tag("header.top", { id: "top" },
    tag("h1", e.title),
    tag("p.subject", said, tag("span.axes-line", " ", axes)),
    verdict(e), remedies(e), e.choice && tag("p", e.choice), figures(e),
    tag("div.gauges", memoryBar(e.memory), e.time && timeBar(e.time)));
}

// Whether it fits, in a sentence.
function verdict(e) {
  const { peak, capacity } = e.memory;
  const used = capacity === null ? `${size(peak)} at the peak`
      : `${size(peak)} of ${size(capacity)}`;
  const over = e.fits === false ? `, ${size(peak - capacity)} too much,` : "";
  const word = e.fits ? tag("span.word.good", "Fits.") : tag("span.word.bad", "Does not fit.");
  const on = tag("span.quiet", ` on each of ${plural(e.devices, "device")}`);
  return tag("p.verdict", e.fits !== null && word, " ", tag("span", used + over),
    e.devices > 1 && on);
}

// What would make it fit; nothing where it does.
function remedies(e) {
  return e.remedies.length > 0 && tag("ul.remedies", e.remedies.map((text) => tag("li", text)));
}

// The figures that people compare. Without a target there are no times.
function figures(e) {
  const units = e[`${e.unit}s`];
  const shown = e.time ? timedFigures(e, units) : [
    ["at the peak", size(e.memory.peak), "estimated, on one device"],
    ["arguments", size(e.memory.arguments), "parameters, optimizer state and batch"],
    ["step time", "unknown", "name a target to learn it"],
    units && [`${e.unit}s`, many(units), "in one step"],
  ];
  return tag("dl.figures", shown.map((one) => one &&
    tag("div", tag("dt", one[0]), tag("dd", tag("b", one[1]), tag("span", one[2])))));
}

// The figures of a step whose time is known.
function timedFigures(e, units) {
  const { step, serial, exposed, model_flops: half, model_flops_full: full } = e.time;
  const causal = half === full ? "of the products that the program computes"
    : `${percent(e.mfu_full)} with causal attention counted in full`;
  const rate = units / (step || 1);
  const unsure = e.uncertainty ? `give or take ${percent(e.uncertainty / step)}; ` : "";
  return [
    ["step", time(step), `${unsure}${time(serial)} without overlap`],
    half && ["MFU", percent(e.mfu), causal],
    ["exposed", share(exposed, step), "of the step waits for collectives"],
    units && [`${e.unit}s a second`, many(rate), `${many(rate / e.devices)} on each device`],
  ];
}

// A bar with what it is called and its key.
function bar(name, label, over, parts, key) {
  const stack = tag("div.stack", { class: over ? "over" : "", role: "img", "aria-label": label },
      parts);
  return tag("div.gauge", name && tag("p.quiet", name), stack, tag("ul.legend", key));
}

// A line of the key of a bar.
function keyed(css, name, said) {
  return tag("li", css && tag("span.part", { class: css }), `${name} `, tag("b", said));
}

// The line in a bar at which memory ends.
function capacityLine(memory, scale) {
  const left = `${((100 * memory.capacity) / scale).toFixed(3)}%`;
  const title = `capacity: ${size(memory.capacity)}`;
  return memory.capacity !== null && tag("span.capacity", { style: { left }, title });
}

const fits = (memory) => memory.capacity === null || memory.peak <= memory.capacity;

// The peak against the capacity: the arguments of the step, and what it needs beside them.
function memoryBar(memory) {
  const { peak, capacity } = memory;
  const scale = Math.max(peak, capacity || 0, 1);
  const parts = [["parameter", "arguments", memory.arguments],
    ["activation", "gradients and activations", Math.max(peak - memory.arguments, 0)]];
  const key = parts.map(([css, name, n]) => keyed(css, name, size(n)));
  const left = fits(memory) ? "free" : "too much";
  if (capacity) key.push(keyed("", left, size(Math.abs(capacity - peak))));
  const label = `memory: ${size(peak)}${capacity ? ` of ${size(capacity)}` : ""}`;
  const drawn = parts.map(([css, , n]) =>
    tag("span.part", { class: css, style: length(n, scale) }));
  return bar("memory", label, !fits(memory), [drawn, capacityLine(memory, scale)], key);
}

// The step as the time that it computes and the time that it waits for collectives.
function timeBar({ step, exposed, communication }) {
  const busy = Math.max(step - exposed, 0);
  const hidden = Math.max(communication - exposed, 0);
  const drawn = [["compute", busy], ["exposed", exposed]].map(([css, n]) =>
    n > 0 && tag("span.part", { class: css, style: length(n, Math.max(step, 1e-12)) }));
  const key = [keyed("compute", "compute", time(busy)),
    keyed("exposed", "waiting for collectives", time(exposed)),
    keyed("hidden-key", "collectives behind compute", time(hidden))];
  const label = `of ${time(step)}, ${time(exposed)} wait for collectives`;
  return bar("step", label, false, drawn, key);
}

// -- The mesh: devices in a grid, one of them marked, with those it exchanges data with --------

const CELL = 18, PITCH = 24; // the width of a device, and from one to the next

// The mesh. At most two axes lie in the plane, the largest across; the others are sheets behind it.
function meshPicture() {
  const live = [...mesh].filter(([, n]) => n > 1).sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const [across, down, ...behind] = live;
  const columns = positions(mesh.get(across) ?? 1, 16), rows = positions(mesh.get(down) ?? 1, 8);
  const sheets = Math.min(3, most(behind.map((name) => mesh.get(name) - 1), 0));
  const words = (name) => `${name} ${commas(mesh.get(name))}`;
  const left = down ? 26 + 8 * Math.max(down.length, commas(mesh.get(down)).length) : 8;
  const top = (across ? 34 : 8) + 9 * sheets;
  const wide = columns.length * PITCH, high = rows.length * PITCH;
  const sheet = (i, css) => tag("rect.sheet", { class: css, x: left - 4 + 9 * i, y: top - 4 - 9 * i,
    width: wide + 2, height: high + 2, rx: 5 });
  const devices = rows.map((y, j) => columns.map((x, i) =>
    device(left + i * PITCH, top + j * PITCH, x, y, j ? null : across, i ? null : down)));
  const names = behind.map((name, i) => tag("text.label", words(name),
    { x: left + wide + 10 + 9 * sheets, y: top + 4 + 18 * i, class: axisClass([name]) }));
  const right = most(behind.map((name) => 12 + 9 * sheets + 8 * words(name).length), 0);
  return svg(meshTitle(live), left + wide + right + 4, top + high + 4, { class: "mesh" },
    range(sheets).map((i) => sheet(sheets - i, axisClass(behind.slice(0, 1)))), sheet(0, "front"),
    devices, across && arrowAcross(left, top - 10 - 9 * sheets, left + wide - 6, across),
    down && arrowDown(left - 12, top, top + high - 6, down), names);
}

// The mesh in words, for those who cannot see it; `live` are the axes larger than 1.
function meshTitle(live) {
  if (!live.length) return "a mesh of one device";
  const peers = live.map((name) => `${commas(mesh.get(name))} over ${name}`).join(" and ");
  const devices = commas(product([...mesh.values()]));
  return `a mesh of ${devices} devices; each exchanges data with groups of ${peers}`;
}

// The positions to draw along an axis, null for a gap.
function positions(n, shown) {
  return n <= shown ? range(n) : [...range(shown - 3), null, n - 1];
}

// A device, or a dot for a gap; coloured by the axis over which the marked one exchanges with it.
function device(x, y, column, row, across, down) {
  if (column === null || row === null) {
    return tag("circle.gap", { cx: x + CELL / 2, cy: y + CELL / 2, r: 1.5 });
  }
  const box = { x, y, width: CELL, height: CELL, rx: 3 };
  if ((across && down) || (column === 0 && row === 0)) return tag("rect.device.this", box);
  const name = across || down;
  if (!name) return tag("rect.device", box);
  return tag("g", { class: axisClass([name]) }, tag("rect.device.peer", box),
    tag("rect", box, { fill: fill(name) }));
}

// A double arrow above the columns, with the name and size of their axis.
function arrowAcross(x, y, to, name) {
  const d = `M${x} ${y}H${to}M${x + 4} ${y - 3}L${x} ${y}L${x + 4} ${y + 3}` +
    `M${to - 4} ${y - 3}L${to} ${y}L${to - 4} ${y + 3}`;
  const label = tag("text.label", { x, y: y - 8 }, `${name} ${commas(mesh.get(name))}`);
  return tag("g", { class: axisClass([name]) }, tag("path.arrow", { d }), label);
}

// A double arrow beside the rows, with the name and size of their axis.
function arrowDown(x, y, to, name) {
  const d = `M${x} ${y}V${to}M${x - 3} ${y + 4}L${x} ${y}L${x + 3} ${y + 4}` +
    `M${x - 3} ${to - 4}L${x} ${to}L${x + 3} ${to - 4}`;
  const label = [name, commas(mesh.get(name))].map((what, i) =>
    tag("text.label.end", { x: x - 8, y: y + 12 + 16 * i }, what));
  return tag("g", { class: axisClass([name]) }, tag("path.arrow", { d }), label);
}

// Each axis: its size, how it lies on the machine, and what it carries in one step.
function axisCards(e) {
  return tag("ul.cards", e.axes.map((axis) => {
    const carries = axis.count
      ? [plural(axis.count, "collective"), " of ", tag("b", size(axis.bytes)), " in all"]
      : "carries nothing";
    const alone = axis.seconds > 0 && [", ", tag("b", time(axis.seconds)), " alone on its links"];
    const idle = "no op uses it: every device along it does the same";
    return tag("li.card", { class: axisClass([axis.name]) },
      tag("div.head", tag("h3", chip(axis.name), tag("span.size", commas(axis.size)))),
      linkPicture(axis.lies, axis.size), axis.lies && tag("p.lies", axis.lies),
      tag("p.said", carries, alone),
      axis.idle && axis.size > 1 && tag("p", tag("span.badge", idle)));
  }));
}

const AROUND = (n) => (i) =>
  [26 + 20 * Math.sin((2 * Math.PI * i) / n), 26 - 20 * Math.cos((2 * Math.PI * i) / n)];
// How each kind of links is drawn, and the words that tell it.
const LINKS = [
  ["block", [" by ", "torus that"], () => (i) =>
    [4 + 14.5 * (i % 4), 4 + 14.5 * Math.floor(i / 4)]],
  ["ring", ["ring of"], AROUND],
  ["line", ["line of"], (n) => (i) => [4 + (44 * i) / (n - 1), 26]],
  ["switch", ["NVLink", "network", "InfiniBand"], AROUND],
];

// How an axis lies on the machine, by the beginning of the words for it: a ring, a line, ...
function linkPicture(words, count) {
  const [first] = words.split(";", 1);
  const found = LINKS.find(([, told]) => told.some((word) => first.includes(word)));
  if (!found || count < 2) return null;
  const [kind, , place] = found;
  const points = range(Math.min(count, kind === "block" ? 16 : 12)).map((i, _, all) =>
    place(all.length)(i));
  const next = points.slice(1).map((to, i) => [points[i], to]);
  const lines = {
    ring: points.length > 2 ? [...next, [points.at(-1), points[0]]] : next,
    line: next,
    switch: points.map((to) => [[26, 26], to]),
    block: points.flatMap((a, i) => points.slice(i + 1).filter((b) =>
      (a[0] === b[0]) !== (a[1] === b[1]) && Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]) < 16)
      .map((b) => [a, b])),
  }[kind];
  const d = lines.map(([a, b]) => `M${a.map(short).join(" ")}L${b.map(short).join(" ")}`).join("");
  return svg(`${commas(count)} devices on a ${kind}`, 52, 52, { class: "links" },
      tag("path.arrow", { d }),
    points.map(([cx, cy]) => tag("circle.node", { cx, cy, r: 3.2 })),
    kind === "switch" && tag("rect.hub", { x: 20, y: 20, width: 12, height: 12, rx: 2 }));
}

// -- A tensor as a block, divided along its dims by the axes that split it ---------------------

// At most three dims have a direction; lengths are not to scale, because a dim of 128,256 beside
// one of 32 would leave nothing to see. Divisions are, up to a number that can be told apart.
const MOST_PIECES = 16, SLANT = 0.5, LETTER = 6.7; // the width of a letter of a label, about

// The block of a tensor; the piece of the first device is filled.
function blockPicture(name, dims) {
  const [across, down, into] = directions(dims);
  const wide = across ? edgeLength(across, 60, 136) : 40;
  const high = down ? edgeLength(down, 44, 112) : 26;
  const deep = into ? edgeLength(into, 14, 40) : 10;
  const left = 10, top = deep * SLANT + 24, dx = deep * SLANT * 1.4, dy = deep * SLANT;
  const box = { left, top, wide, high, dx, dy };
  const face = (css, d) => tag("path", { class: css, d });
  const labels = blockLabels(across, down, into, box);
  return svg(blockTitle(name, dims), Math.max(left + wide + dx + labels.right + 6, 150),
      top + high + 26,
    { class: "block" },
    face("face top", `M${left} ${top}l${dx} ${-dy}h${wide}l${-dx} ${dy}z`),
    face("face side", `M${left + wide} ${top}l${dx} ${-dy}v${high}l${-dx} ${dy}z`),
    tag("rect.face", { x: left, y: top, width: wide, height: high }),
    firstPiece(across, down, into, box),
    dividers(across, (t) => `M${left + t * wide} ${top + high}v${-high}l${dx} ${-dy}`),
    dividers(down, (t) => `M${left} ${top + t * high}h${wide}l${dx} ${-dy}`),
    dividers(into, (t) => `M${left + t * dx} ${top - t * dy}h${wide}v${high}`),
    face("outline", `M${left} ${top}h${wide}v${high}h${-wide}z` +
      `M${left} ${top}l${dx} ${-dy}h${wide}l${-dx} ${dy}m${dx} ${-dy}v${high}l${-dx} ${dy}`),
    labels.drawn);
}

// The block in words, for those who cannot see it.
function blockTitle(name, dims) {
  const splits = dims.filter((dim) => dim.axes.length).map((dim) =>
    `${dim.name} of ${commas(dim.size)} in ${commas(pieces(dim))} over ${dim.axes.join(" and ")}`);
  return `${name}: ${splits.join("; ") || "whole on every device"}`;
}

// The dims that lie across, down and into the page: those that are split, then the largest ones.
function directions(dims) {
  const ranked = range(dims.length).sort((i, j) =>
    !dims[i].axes.length - !dims[j].axes.length || dims[j].size - dims[i].size || i - j);
  const [first, last] = ranked.slice(0, 2).sort((i, j) => i - j);
  return last === undefined ? [dims[first]] : [dims[last], dims[first], dims[ranked[2]]];
}

// How long the edge of a dim is drawn: it grows with the logarithm of the size.
function edgeLength(dim, least, longest) {
  const long = least + ((longest - least) * Math.log2(Math.max(dim.size, 1))) / 17;
  return Math.round(Math.min(longest, long));
}

const drawnPieces = (dim) => (dim ? Math.min(MOST_PIECES, pieces(dim)) : 1);

// The part of the first device, in the colours of all axes that split the tensor.
function firstPiece(across, down, into, { left, top, wide, high, dx, dy }) {
  const by = [down, across, into].flatMap((dim) => dim?.axes ?? []);
  const w = wide / drawnPieces(across), h = high / drawnPieces(down);
  const x = dx / drawnPieces(into), y = dy / drawnPieces(into);
  const side = w === wide ? `M${left + w} ${top}l${x} ${-y}v${h}l${-x} ${y}z` : "";
  const d = `M${left} ${top}h${w}v${h}h${-w}zM${left} ${top}l${x} ${-y}h${w}l${-x} ${y}z${side}`;
  return by.length > 0 && [tag("path.piece", { d, class: axisClass(by.slice(0, 1)) }),
    [...new Set(by)].map((axis) => tag("path", { d, fill: fill(axis) }))];
}

// The lines between the pieces of a dim, those of its first axis strongest.
function dividers(dim, line) {
  let count = 1;
  return (dim?.axes ?? []).map((axis, depth) => {
    const before = count;
    count = Math.min(MOST_PIECES, count * (mesh.get(axis) ?? 1));
    const drawn = (i) => before > 1 && count % before === 0 && i % (count / before) === 0;
    const d = range(count).slice(1).filter((i) => !drawn(i)).map((i) => line(i / count)).join("");
    return d && tag("path.cut", { d, class: `${axisClass([axis])}${depth ? " minor" : ""}` });
  });
}

// The names and sizes along the edges, and the room that they need on the right.
function blockLabels(across, down, into, { left, top, wide, high, dx, dy }) {
  const width = (dim) => LETTER * labelTexts(dim).join("").length;
  const besides = down && LETTER * most(labelTexts(down).map((line) => line.length), 0);
  const shift = down?.axes.length ? -4 : 4;
  return {
    drawn: [across && label(across, left, top + high + 16),
      down && label(down, left + wide + dx + 6, top - dy + high / 2 + shift, true),
      into && label(into, left + dx, top - dy - 7)],
    right: Math.max(0, across ? width(across) - wide - dx : 0, down ? 8 + besides : 0,
      into ? width(into) - wide : 0),
  };
}

// A dim with its size, and into how many parts which axes split it: `d_ff 64`, ` / 4 model`.
function labelTexts(dim) {
  const split = dim.axes.length ? ` / ${commas(pieces(dim))} ${dim.axes.join(" ")}` : "";
  return [`${dim.name} ${commas(dim.size)}`, split.replaceAll(" ", "\u00a0")];
}

// The label of a dim; where it is stacked, the axes stand in a second line.
function label(dim, x, y, stacked = false) {
  const [plain, split] = labelTexts(dim);
  const by = tag("tspan.by", { class: axisClass(dim.axes) }, stacked && { x, dy: 15 },
    stacked ? split.trimStart() : split);
  return tag("text.label.small", { x, y }, plain, split && by);
}

const SHOWN = 18; // tensors before the rest is folded

// A card for each parameter, the largest first; those that no screen would show are folded.
function parameters(e) {
  const found = e.memory.at_rest.filter((one) => one.kind === "parameter");
  const ordered = found.sort((a, b) => b.bytes - a.bytes);
  const cards = (some) => tag("ul.blocks", some.map(tensorCard)), more = ordered.slice(SHOWN);
  const bytes = size(sum(more.map((one) => one.bytes)));
  const left = `${plural(more.length, "smaller parameter")}, ${bytes}`;
  return ordered.length > 0 && [cards(ordered.slice(0, SHOWN)),
    more.length > 0 && folded(`${left} on a device`, cards(more))];
}

// One tensor: its name, its block, its sizes and its dims.
function tensorCard(one) {
  return tag("li.tensor", { tabindex: "0" }, tag("p.of", notation(one.name, one.dims)),
    blockPicture(one.name, one.dims), tag("p.said", sizeWords(one)), dimsTable(one.dims));
}

// `112.0 MiB of 7.00 GiB on a device`.
function sizeWords(one) {
  const local = Math.max(product(one.dims.map((dim) => dim.local)), 1);
  const whole = Math.floor((one.bytes * product(one.dims.map((dim) => dim.size))) / local);
  const rest = whole === one.bytes ? " whole on every device" : ` of ${size(whole)} on a device`;
  return [tag("b", size(one.bytes)), rest];
}

// A table of dims: sizes in all and on a device, and the axes that split each.
function dimsTable(dims, name = (dim) => dim.name) {
  const head = ["dim", "whole", "on a device", "split over"];
  return tag("table.nest",
      tag("thead", tag("tr", head.map((text) => tag("th", { scope: "col" }, text)))),
    tag("tbody", dims.map((dim) => row([tag("th", { scope: "row" }, name(dim)), commas(dim.size),
      commas(dim.local), chips(dim.axes)]))));
}

// One tensor alone: its block, its sizes, and which device holds which part.
function tensorView({ tensor, parts }) {
  const head = tag("tr", ["part", "on"].map((text) => tag("th", { scope: "col" }, text)));
  const rows = parts.map(([part, on]) => row([tag("th", { scope: "row" }, part), on.join(", ")]));
  const table = tag("table.nest", tag("thead", head), tag("tbody", rows));
  return [tag("p", notation(tensor.name, tensor.dims), " ", tag("span.quiet", tensor.dtype)),
    tag("div.side-by-side", blockPicture(tensor.name, tensor.dims),
      tensor.dims.length > 0 && dimsTable(tensor.dims)),
    tag("p.said", mesh.size ? sizeWords(tensor) : [tag("b", size(tensor.bytes)), " on one device"]),
    parts.length > 0 && folded("Which device holds what", table)];
}

// -- The edges of the flow: a collective as a band, as wide as the square root of its bytes ----

const SPINE = 132, EDGE = 34, WIDEST = 58; // the column's width, an edge's height, half a band
const VERBS = {
  all_gather: "gathers", psum_scatter: "sums and scatters", psum: "sums", pmax: "takes the largest",
  pmin: "takes the smallest", all_to_all: "exchanges", ppermute: "passes on",
};
// Collectives whose result and operand differ in size by the number of devices.
const NARROW = ["all_gather", "psum_scatter"];

// A key to the shapes of the collectives that are used.
function shapesKey(used) {
  const shown = Object.entries(VERBS).filter(([name]) => used.has(name));
  const picture = (name, what) => svg(`${name} ${what}`, 40, 22, { class: "key" },
    tag("path.band", { d: shape(name, 20, 22, 15, NARROW.includes(name) ? 5 : 15) }));
  const items = shown.map(([name, what]) =>
    tag("li", picture(name, what), tag("code", name), ` ${what}`));
  return items.length > 0 && tag("ul.legend", { "aria-label": "shapes of the collectives" }, items);
}

// An edge over which nothing is moved.
function plainEdge() {
  return tag("div.edge.plain", { "aria-hidden": "true" }, tag("span.line"));
}

// An edge with a collective on it; `widest` are the bytes of the largest one of the page.
function edge(move, widest) {
  const half = (bytes) => 2 + WIDEST * Math.sqrt(bytes / Math.max(widest, 1));
  const parts = NARROW.includes(move.operation) ? pieces(move) : 1;
  const d = shape(move.operation, SPINE / 2, EDGE, half(move.bytes), half(move.bytes / parts));
  const said = `${move.operation} over ${move.axes.join(" and ")}, ${size(move.bytes)}`;
  const picture = svg(said, SPINE, EDGE, { class: `band-picture ${axisClass(move.axes)}` },
    { preserveAspectRatio: "none" }, tag("path.band", { d }),
    move.axes.map((axis) => tag("path", { d, fill: fill(axis) })));
  const times = move.count > 1 ? `${commas(move.count)}\u00a0× ` : "";
  const seconds = move.seconds ? `, ${time(move.seconds)}` : "";
  return tag("div.edge", tag("span.spine", picture), tag("span.what", chips(move.axes), " ",
    tag("code", move.operation), " ", tag("span.fact", `${times}${size(move.bytes)}${seconds}`)));
}

// The path of a band around `x`, `h` high; it opens for a gather, closes for a scatter, has a waist
// for a sum and crosses for an exchange. `wide` and `narrow` are half of the width at either end.
function shape(operation, x, h, wide, narrow) {
  const curve = (u, v, from, to) => {
    const middle = (from + to) / 2;
    return `C${short(x + u)} ${middle} ${short(x + v)} ${middle} ${short(x + v)} ${to}`;
  };
  // Between y = 0, from a to b, and y = h, from c to d.
  const band = (a, b, c, d) => `M${short(x + a)} 0H${short(x + b)}${curve(b, d, 0, h)}` +
    `H${short(x + c)}${curve(c, a, h, 0)}Z`;
  if (["psum", "pmax", "pmin"].includes(operation)) {
    const waist = Math.max(1, wide * 0.35), m = h / 2;
    return `M${short(x - wide)} 0H${short(x + wide)}${curve(wide, waist, 0, m)}` +
      `${curve(waist, wide, m, h)}H${short(x - wide)}${curve(-wide, -waist, h, m)}` +
      `${curve(-waist, -wide, m, 0)}Z`;
  }
  if (operation === "all_to_all") {
    return band(-wide, -wide / 2, wide / 2, wide) + band(wide / 2, wide, -wide, -wide / 2);
  }
  if (operation === "ppermute") return band(-wide, 0.2 * wide, -0.2 * wide, wide);
  return operation === "all_gather" ? band(-narrow, narrow, -wide, wide)
      : band(-wide, wide, -narrow, narrow);
}

// -- The flow: ops from top to bottom, a panel for each pass -----------------------------------

const SMALL = 0.002; // of the FLOPs of a pass: ops with less that move nothing are folded
const REPEATED = 0.001; // of all work: what is repeated below that is not worth a word
const passName = (phase) => (phase === "gradient" ? "gradients" : phase);
const flopsOf = (op, phase) => op.flops[phase] ?? 0;
const movesOf = (op, phase) => op.moves.filter((move) => move.phase === phase);
const anchor = (tag, phase) => `p-${phase}-${tag}`;

// Whether an op is shown in a pass: it computes or moves something there. Views and constants do
// neither in any; they are shown in the forward pass only.
function standsIn(op, phase) {
  if (flopsOf(op, phase) || movesOf(op, phase).length) return true;
  return phase === "forward" && !Object.keys(op.flops).length && !op.moves.length;
}

// The panels of all passes that have any work, with radio buttons that choose one.
function flow(e) {
  const moves = e.ops.flatMap((op) => op.moves);
  const widest = most(moves.map((move) => move.bytes), 1);
  const panels = PHASES.map((phase) => {
    const ops = e.ops.filter((op) => standsIn(op, phase));
    const flops = ops.map((op) => flopsOf(op, phase));
    return { phase, ops, widest, flops: sum(flops), most: most(flops, 0) };
  }).filter((one) => one.flops || one.ops.some((op) => movesOf(op, one.phase).length));
  if (!panels.length) return tag("p.quiet", "No op does any work.");
  const choose = panels.map(({ phase }, i) => {
    const id = `phase-${phase}`;
    const radio = { type: "radio", name: "phase", id, class: `pick pick-${i}`, checked: i === 0 };
    return [tag("input", radio), tag("label", { for: id }, passName(phase))];
  });
  return tag("div.flows", tag("fieldset.phases", tag("legend", "pass"), choose),
    shapesKey(new Set(moves.map((move) => move.operation))),
    panels.map((one, i) => tag("div.panel", { class: `panel-${i}`, "data-phase": one.phase },
      tag("h3", passName(one.phase)), passSummary(one), tag("ol.flow", flowRows(one, one.ops)))));
}

// What a pass computes and moves in all, in a sentence.
function passSummary({ phase, ops, flops }) {
  const moves = ops.flatMap((op) => movesOf(op, phase));
  const said = [flops > 0 && tag("b", work(flops)), flops > 0 && moves.length > 0 && " and "];
  if (moves.length) {
    const bytes = sum(moves.map((move) => move.count * move.bytes));
    said.push(tag("b", plural(sum(moves.map((move) => move.count)), "collective")), " of ",
      tag("b", size(bytes)), " in all");
  }
  const order = phase === "backward" ? "from the loss back" : "in the order of the program";
  return tag("p.said", said, ` on each device, ${order}.`);
}

// The ops of a panel; those of the same loop stand in one frame. `depth` loops are framed already.
function flowRows(panel, ops, depth = 0) {
  const ordered = panel.phase === "backward" && depth === 0 ? [...ops].reverse() : ops;
  return runs(ordered, (op) => JSON.stringify(op.loops[depth])).map((inside) => {
    if (inside[0].loops.length <= depth) return flowChain(panel, inside);
    const [name, count] = inside[0].loops[depth];
    const flops = sum(inside.map((op) => flopsOf(op, panel.phase)));
    const said = panel.flops ? `${share(flops, panel.flops)} of the FLOPs of this pass` : "";
    return tag("li.loop", tag("p.times", tag("b", `${commas(count)} ×`), ` ${name} `,
        tag("span.quiet", said)),
      tag("ol.flow", flowRows(panel, inside, depth + 1)));
  });
}

// Ops in a row, neighbours that are small folded into one.
function flowChain(panel, ops) {
  return runs(ops, (op) => isSmall(op, panel)).map((some) =>
    some.length > 1 && isSmall(some[0], panel) ? smallOps(panel, some)
        : some.map((op) => opRow(panel, op)));
}

// Whether an op moves nothing and computes little.
function isSmall(op, { phase, flops }) {
  return !movesOf(op, phase).length && !op.waste && flopsOf(op, phase) <= SMALL * flops;
}

// Small neighbours as one node, which opens to list them.
function smallOps(panel, ops) {
  const names = [...new Set(ops.map((op) => op.name))].join(", ");
  const flops = sum(ops.map((op) => flopsOf(op, panel.phase)));
  const head = tag("summary",
    tag("span.spine", tag("span", tag("span.node.fold", `${ops.length} small ops`))),
    tag("span.what", tag("span.said-of", tag("span.quiet.small", names),
      flops > 0 && tag("span.fact", work(flops)))));
  const lines = ops.map((op) => tag("li", { id: anchor(op.tag, panel.phase), tabindex: "-1" },
    notation(op.name, op.dims), " ", tag("span.source", op.source), idleBadge(op, panel)));
  return tag("li.row", plainEdge(), tag("details.op", head, tag("ul.inside.small-ops", lines)));
}

// An op with the edges of its collectives, before it or, from the loss back, after it.
function opRow(panel, op) {
  const flops = flopsOf(op, panel.phase), moves = movesOf(op, panel.phase);
  const filled = flops > 0 && tag("span.bar", { style: length(flops, panel.most) });
  const why = op.lacks.map(([name, lacks]) => `not by ${name}: ${lacks}`).join("; ");
  const said = [flops > 0 && tag("span.fact", `${work(flops)}, ${share(flops, panel.flops)}`),
    idleBadge(op, panel), op.kernel && tag("span.badge", { title: why || null }, `by ${op.kernel}`),
    op.waste > 0 && tag("span.badge", `+${percent(op.waste, 0)} padding`)];
  const head = tag("summary",
    tag("span.spine", tag("span.node", { class: isSmall(op, panel) ? "fold" : "" }, filled,
        tag("span", op.name))),
    tag("span.what", tag("span.said-of", nest(op.dims), said), tag("span.source", op.source)));
  const box = tag("details.op", { id: anchor(op.tag, panel.phase) }, head,
    tag("div.inside", opDetails(op, panel)));
  if (!moves.length) return tag("li.row", plainEdge(), box);
  const edges = moves.map((move) => edge(move, panel.widest));
  return tag("li.row", panel.phase === "backward" ? [plainEdge(), box, edges] : [edges, box]);
}

// A badge for an op that devices repeat; nothing where that is too little to matter.
function idleBadge(op, { phase, flops }) {
  const matters = op.idle.length > 0 && flopsOf(op, phase) > REPEATED * flops;
  return matters && tag("span.badge", `repeated over ${op.idle.join(", ")}`);
}

// What an op shows when it is opened: its loop nest, the rules behind its moves, and facts.
function opDetails(op, { phase }) {
  const rules = movesOf(op, phase).map((move) => tag("li", chips(move.axes), " ",
    tag("code", move.operation), move.why && `: ${ruleWords(move.why)}`));
  const flops = PHASES.filter((one) => flopsOf(op, one))
    .map((one) => `${passName(one)} ${work(op.flops[one])}`).join(", ");
  return [op.dims.length > 0 && tag("div.scroll", dimsTable(op.dims, dimName)),
    rules.length > 0 && tag("ul.rules", rules),
    facts([["source", tag("code", op.source)],
      ["runs", op.count === 1 ? "once a step" : `${commas(op.count)} times a step`],
      ["FLOPs", flops],
      ["could use", op.idle.length > 0 && op.advice
          && `${op.idle.join(", ")} with the rule ${op.advice}`],
      ["tag", tag("code", op.tag)]])];
}

// -- A pipeline as a schedule: a row for each stage, microbatches in colour --------------------

const PIPELINE = { wide: 820, label: 64, row: 26, top: 24, tick: [3, 44], numbered: 17 }; // pixels
const STAGES = 16, TICKS = 400; // how many are drawn
const PALEST = 0.35; // the opacity of the last of several rounds

// A pipeline's figures and its schedule; `step` is its time, where that is known.
function pipeline(one, step) {
  const count = product(one.loops.map(([, n]) => n)), ticks = one.ticks * count;
  const elements = one.chunk * one.rounds, padding = elements * one.stages - one.size;
  const waits = one.ticks - one.rounds * one.microbatches;
  const timed = one.forward !== null && one.backward !== null;
  const waited = timed && step
    ? `, ${time(one.waiting)} (${percent(one.waiting / step)}) of the step` : "";
  const undivided = "where they do not divide over the stages, they are not split over them";
  return tag("div.pipeline", one.ticks <= TICKS && schedule(one), facts([
    ["stages", [`${one.stages} along `, chips(one.axes)]],
    ["layers", `${one.size} ${one.dim}, ${elements} on each stage` +
      `${one.rounds > 1 ? ` in ${one.rounds} chunks of ${one.chunk}` : ""}` +
      `${padding ? `, with padding of ${padding}` : ""}`],
    ["microbatches", `${one.microbatches}` +
      `${one.rounds > 1 ? `, each ${one.rounds} times round the stages` : ""}` +
      `${count > 1 ? `; the pipeline runs ${count} times a step` : ""}`],
    ["bubble", `a stage waits for ${waits} of ${one.ticks} ticks (${percent(one.bubble)})` +
      waited],
    ["a tick takes", timed && `${time(one.forward / ticks)} forward` +
      `${one.backward ? `, ${time(one.backward / ticks)} backward` : ""}`],
    ["parameters at rest", one.split ? `${size(one.parameters)} of its stage`
      : `${size(one.parameters)} of all ${one.size} ${one.dim}: ${undivided}`],
    ["kept for the backward pass", one.kept > 0 && `${size(one.kept)}, ` + (one.early
      ? `${size(one.kept / one.slots)} of each item under way`
      : `${size(one.kept / one.ticks)} of each tick`)],
    ["from", tag("span.source", one.source)],
  ]));
}

// The schedule of all stages in the passes, to scale where times are known, and a key to it.
function schedule(one) {
  const { wide, label, row, top, tick: [least, widest] } = PIPELINE;
  const backward = one.early || one.backward === null || one.backward > 0;
  const ratio = one.forward && one.backward ? one.backward / one.forward : 2;
  const all = one.early ? one.ticks + one.first_back : one.ticks * (1 + ratio * backward);
  const tick = clamp(wide / all, least, widest);
  const stages = range(Math.min(one.stages, STAGES));
  const passes = [["forward", tick, label, one.forward]];
  if (one.early) passes.push(["back", tick, label + one.first_back * tick, one.backward]);
  else if (backward) {
    passes.push(["backward", tick * ratio, label + one.ticks * tick + 8, one.backward]);
  }
  const [, last, start] = passes.at(-1), id = `waits-${one.tag}`;
  const hatch = tile(id, "", tag("path.stroke", { d: "M-2 2 2-2M0 8 8 0M6 10 10 6" }));
  const drawn = passes.map(([name, width, x, seconds]) =>
    [tag("text.pass", { x: one.early && x > label ? Math.max(x, label + 160) : x, y: 14 }, name + (seconds === null ? "" : `, ${time(seconds)}`)),
      schedulePass(one, stages, name, width, x, id)]);
  const picture = svg(`schedule of ${one.stages} stages and ${one.microbatches} microbatches`,
    start + one.ticks * last + 1, top + stages.length * row, { class: "schedule" },
        tag("defs", hatch),
    stages.map((stage) => tag("text.stage", { x: 0, y: top + stage * row + 16 }, `stage ${stage}`)),
        drawn);
  const key = ["A colour and a number are a microbatch",
    one.rounds > 1 && ", paler in later rounds",
    "; hatched, the stage waits: it works on what is dropped.",
    one.early ? " Above what goes forward, below what goes back at the same tick."
      : one.forward === null && " A tick of the backward pass is drawn twice as wide as one forward.",
    one.stages > STAGES && ` The first ${STAGES} of ${one.stages} stages are drawn.`];
  return tag("div", scroll("the schedule of the pipeline", picture), tag("p.said", key));
}

// Microbatch and round that a stage works on at a tick, as in `meshdsl/splits/pipeline.py`; null
// where it waits. In an early schedule `back` counts the ticks from the one at which the first
// microbatch goes back, and the last round goes back first.
function workAt({ stages, microbatches, rounds, ticks }, stage, tick, back) {
  const item = tick - (back ? stages - 1 - stage : stage), turn = rounds * stages;
  const microbatch = Math.floor(item / turn) * stages + (item % stages);
  if (item < 0 || item >= ticks - stages + 1 || microbatch >= microbatches) return null;
  const round = Math.floor((item % turn) / stages);
  return [microbatch, back ? rounds - 1 - round : round];
}

// All ticks of a pass: what waits is hatched, and each microbatch of a round is one path. The
// backward pass mirrors the forward pass: what ran last is differentiated first.
function schedulePass(one, stages, name, width, start, hatch) {
  const { row, top, tick: [least], numbered } = PIPELINE, back = name === "back";
  const high = one.early ? (row - 3) / 2 : row - 3, low = back ? high : 0;
  const all = stages.flatMap((stage) => range(one.ticks).map((tick) => {
    const place = name === "backward" ? one.ticks - 1 - tick : tick;
    const on = workAt(one, stage, tick, back);
    return { on, x: start + place * width, y: top + stage * row + low };
  }));
  const boxes = (some, w) => some.map(({ x, y }) =>
    `M${short(x)} ${short(y)}h${short(w)}v${high}h-${short(w)}z`).join("");
  return [...groups(all, ({ on }) => on && on.join(" "))].map(([key, some]) => {
    if (key === null) {
      return tag("path", { d: boxes(some, width), fill: `url(#${hatch})` },
          tag("title", `waits, ${name}`));
    }
    const [microbatch, round] = some[0].on;
    const said = `microbatch ${microbatch}, ${name}${one.rounds > 1 ? `, round ${round}` : ""}`;
    const pale = 1 - ((1 - PALEST) * round) / Math.max(one.rounds - 1, 1);
    const style = { "--h": String((360 * microbatch) / one.microbatches), "--o": pale.toFixed(2) };
    const d = boxes(some, width - (width > 2 * least ? 1 : 0));
    return [tag("path.work", { d, style }, tag("title", said)), width >= numbered &&
      some.map(({ x, y }) =>
        tag("text.number", { x: x + width / 2, y: y + high / 2 + 4 }, microbatch))];
  });
}

// -- The timeline: one row for each stream, and what runs on it from left to right -------------

// A loop of 32 layers would leave each layer a few pixels. So its first turn is drawn in full, and
// the other turns are squeezed into one hatched block: the clock below jumps there.
const SQUEEZED = 0.035; // of the width, for the further turns of a loop
const SHORTEST = 1e-9; // seconds; what takes less is not drawn

// The loop of a span on the stream `loops`. The spans inside of it show its first turn; what they
// show is repeated as many times more often as the loop has turns.
function loopOf(span, spans, ops) {
  const around = spans.filter((other) => other.stream === "loops" && other.repeats < span.repeats &&
    other.start <= span.start && span.end <= other.end);
  const inside = spans.filter((other) => other !== span && other.repeats > span.repeats &&
    span.start <= other.start && other.end <= span.end);
  const least = inside.reduce((a, b) => Math.min(a, b.repeats), Infinity);
  const turns = inside.length ? Math.floor(least / span.repeats) : 1, depth = around.length;
  const loops = inside.map((other) => ops.get(other.tag)?.loops).find((some) => some?.length) ?? [];
  const over = [...loops.slice(depth), ...loops].find(([, count]) => count === turns);
  const first = inside.length ? most(inside.map((other) => other.end), 0) : span.end;
  return { name: over ? over[0] : span.name, phase: span.phase, start: span.start, end: span.end,
    first, turns, depth };
}

// The way from seconds of a step, which ends at `end`, to percents of the width; the further turns
// of the loops are squeezed.
function clockOf(loops, end) {
  const rests = loops.filter((loop) => loop.turns > 1 && loop.first < loop.end)
    .map((loop) => ({ start: loop.first, end: loop.end, turns: loop.turns - 1 }));
  const squeezed = sum(rests.map((rest) => rest.end - rest.start));
  const rate = (100 * (1 - SQUEEZED * rests.length)) / Math.max(end - squeezed, 1e-12);
  const at = (seconds) => Math.min(100, seconds * rate + sum(rests.map((rest) => {
    const long = rest.end - rest.start;
    return clamp(seconds - rest.start, 0, long) * ((100 * SQUEEZED) / long - rate);
  })));
  const place = (from, to) => ({ left: `${at(from).toFixed(3)}%`,
    width: `${Math.max(at(to) - at(from), 0.02).toFixed(3)}%` });
  return { end, rests, at, place };
}

// The timeline of the step, a key to it, and the same as a table; nothing without times.
function timeline(e) {
  if (!e.time?.spans.length) return null;
  const ops = new Map(e.ops.map((op) => [op.tag, op]));
  const spans = e.time.spans.filter((span) => span.end - span.start >= SHORTEST)
    .sort((a, b) => a.start - b.start || a.end - b.end);
  const loops = spans.filter((span) => span.stream === "loops").map((span) =>
    loopOf(span, spans, ops));
  const clock = clockOf(loops, most(spans.map((span) => span.end), e.time.step));
  const depth = most(loops.map((loop) => loop.depth + 1), 0);
  const rests = clock.rests.map(({ start, end, turns }) =>
    tag("span.rest", { style: clock.place(start, end) }, tag("b", `${commas(turns)}\u00a0more`)));
  const streams = groups(spans.filter((span) => span.stream !== "loops"), (span) => span.stream);
  const names = [...new Set(["compute", ...streams.keys()])];
  const lanes = [
    ...range(depth).map((i) =>
      lane("loops", loops.filter((loop) => loop.depth === i), (loop) => loopBlock(loop, clock))),
    ...names.map((name) => lane(name, streams.get(name) ?? [], (span) =>
      spanBlock(span, clock, ops.get(span.tag)))),
  ];
  const zoomed = tag("div.zoomed", { style: { "--depth": String(depth) } }, lanes, scale(clock),
    tag("div.rests", { "aria-hidden": "true" }, rests));
  const picked = tag("p.said.picked", { "aria-live": "polite" },
    "Every block says what it is: point at it, or go through them with the arrow keys.");
  const frame = scroll("timeline of one step", zoomed);
  const found = tag("div.timeline", zoomBar(frame, zoomed),
    loops.length > 0 && overview(loops, clock.end),
    frame, picked, timelineKey(loops.length > 0),
    folded("The timeline as a table", timelineTable(spans, ops)));
  walkable(found, picked);
  return found;
}

// The row of a stream; that of collectives is named by the axes that they go over.
function lane(stream, some, block) {
  const names = stream.split(", ").filter((name) => mesh.has(name));
  return tag("div.lane", { class: stream === "loops" ? "loops" : "" },
    tag("div.stream", names.length ? chips(names) : stream), tag("div.track", some.map(block)));
}

// The clock below the lanes: the ends of what it jumps over, and times evenly between them.
function scale(clock) {
  const ends = clock.rests.flatMap((rest) => [rest.start, rest.end]);
  const marks = [...new Set([0, ...ends, clock.end])].sort((a, b) => a - b);
  const times = [0, ...marks.slice(1).flatMap((to, i) => {
    const parts = Math.max(Math.floor((clock.at(to) - clock.at(marks[i])) / 11), 1);
    return range(parts).map((j) => marks[i] + ((to - marks[i]) * (j + 1)) / parts);
  })];
  const kept = times.reduce((some, t) =>
    some.length && clock.at(t) - clock.at(some.at(-1)) <= 7 ? some : [...some, t], []);
  const ticks = kept.map((t) => tag("span.tick", { class: clock.at(t) > 94 ? "last" : "" },
    { style: { left: `${clock.at(t).toFixed(2)}%` } }, time(t)));
  return tag("div.lane.clock", { "aria-hidden": "true" }, tag("div.stream"),
      tag("div.track", ticks));
}

// The whole step to scale, loops as blocks; what is in a loop is not drawn.
function overview(loops, end) {
  const clock = clockOf([], end);
  const blocks = loops.filter((loop) => !loop.depth).map((loop) => {
    const took = time(loop.end - loop.start);
    const said = `${commas(loop.turns)}\u00a0× ${loop.name}, ${loop.phase}, ${took}`;
    return tag("span.block.compute",
        { class: loop.phase, style: clock.place(loop.start, loop.end) },
      tag("span", said));
  });
  const label = `the whole step of ${time(end)} to scale`;
  return tag("div.whole", tag("p.said", `The whole step, ${time(end)}, to scale`),
    tag("div.track", { role: "img", "aria-label": label }, blocks));
}

// A block of the timeline that says what it is; `id` is that of its op, if it has one.
function block(css, place, title, inside, id = "") {
  const told = { title, role: "button", "aria-label": title, tabindex: "-1",
    "data-op": id || null };
  return tag("span.block", { class: css, style: place }, told, tag("span", inside));
}

// The block of all turns of a loop.
function loopBlock(loop, clock) {
  const took = loop.end - loop.start, times = commas(loop.turns);
  const each = time(took / loop.turns);
  const said = `${times} × ${loop.name}, ${loop.phase}: ${time(took)}, ${each} each`;
  return block("", clock.place(loop.start, loop.end), said,
      [tag("b", `${times}\u00a0×`), ` ${loop.name}`]);
}

// The block of what runs on a stream.
function spanBlock(span, clock, op) {
  const names = span.stream.split(", ").filter((name) => mesh.has(name));
  const part = op && span.name !== op.name ? `${span.name} of ` : "";
  const what = op ? `${part}${op.name} at ${op.source}` : span.name;
  const times = span.repeats > 1 ? `, ${commas(span.repeats)} times` : "";
  const when = `${time(span.end - span.start)} from ${time(span.start)}`;
  const said = `${what}, ${span.phase}, ${when}${times}`;
  return block(names.length ? axisClass(names) : `compute ${span.phase}`,
      clock.place(span.start, span.end),
    said, op && !names.length ? op.name : span.name, op && anchor(span.tag, span.phase));
}

// A key to the shades, with loops also to their further turns.
function timelineKey(loops) {
  const items = ["forward", "recompute", "backward", "optimizer"].map((phase) =>
    tag("li", tag("span.block.compute", { class: phase }), phase));
  const rest = tag("li", tag("span.block.rest"), "further turns of a loop, not to scale");
  return tag("ul.legend", { "aria-label": "shades of compute" }, items, loops && rest);
}

// What the timeline shows, as a table.
function timelineTable(spans, ops) {
  const columns = [["stream"], ["what"], ["op"], ["pass"], ["from", "figure"], ["takes", "figure"],
    ["times", "figure"]].map(([name, css]) => [name, css ?? ""]);
  return scroll("the timeline as a table", table(columns, spans.map((span) => {
    const op = ops.get(span.tag), took = span.end - span.start;
    return [span.stream, span.name, op ? `${op.name} ${op.source}` : "", span.phase,
      figure(time(span.start), span.start), figure(time(took), took),
      figure(commas(span.repeats), span.repeats)];
  })));
}

// Buttons and keys that zoom the timeline.
function zoomBar(frame, zoomed) {
  let zoom = 1;
  const set = (value) => {
    const middle = (frame.scrollLeft + frame.clientWidth / 2) / frame.scrollWidth;
    zoom = clamp(value, 1, 64);
    zoomed.style.width = `${100 * zoom}%`;
    frame.scrollLeft = middle * frame.scrollWidth - frame.clientWidth / 2;
  };
  frame.addEventListener("keydown", ({ key }) => {
    if (key === "+" || key === "=") set(zoom * 2);
    if (key === "-") set(zoom / 2);
  });
  const button = (text, label, change) =>
    listen(tag("button", { type: "button", "aria-label": label }, text), "click", () =>
      set(change()));
  return tag("div.zoom", button("+", "zoom in", () => zoom * 2),
      button("−", "zoom out", () => zoom / 2),
    button("Whole step", "show the whole step", () => 1));
}

// Lets arrow keys go through the blocks of a timeline, which is one stop for Tab, and says of the
// one in focus what it is.
function walkable(timeline, picked) {
  const lanes = all(".lane:not(.clock)", timeline)
    .map((one) => all(".block", one)).filter((one) => one.length);
  const blocks = lanes.flat();
  if (blocks.length) blocks[0].tabIndex = 0;
  const pick = (block) => {
    blocks.forEach((other) => {
      other.tabIndex = other === block ? 0 : -1;
      other.classList.toggle("on", other === block);
    });
    picked.textContent = block.title;
    const id = block.dataset.op;
    if (!document.getElementById(id)) return;
    picked.append(" (", tag("a", { href: `#${id}` }, "show the op"), ")");
  };
  listen(timeline, "click", ({ target }) => target.closest(".lane .block")?.focus());
  listen(timeline, "focusin", ({ target }) => blocks.includes(target) && pick(target));
  listen(timeline, "keydown", (event) => {
    const at = lanes.findIndex((one) => one.includes(event.target));
    if (at < 0) return;
    const i = lanes[at].indexOf(event.target);
    const away = (other) => Math.abs(other.offsetLeft - event.target.offsetLeft);
    const nearest = (one) =>
      one?.reduce((best, other) => (away(other) < away(best) ? other : best));
    step(event, { ArrowRight: lanes[at][i + 1], ArrowLeft: lanes[at][i - 1],
      ArrowDown: nearest(lanes[at + 1]), ArrowUp: nearest(lanes[at - 1]),
      Home: lanes[at][0], End: lanes[at].at(-1) });
  });
}

// -- The memory of one device -------------------------------------------------------------------

const KINDS = { parameter: "parameters", optimizer: "optimizer state", gradient: "gradients",
  batch: "batch", other: "other", activation: "activations" };
const LISTED = 60; // arrays of a kind that are listed by name
const total = (memory, kind) =>
  sum(memory.at_rest.filter((one) => one.kind === kind).map((one) => one.bytes));

// The arguments by kind and the rest of the peak in one bar, with the capacity as a line.
function gauge(memory) {
  const { peak, capacity } = memory, scale = Math.max(peak, memory.arguments, capacity || 0, 1);
  const parts = Object.keys(KINDS).filter((kind) => kind !== "gradient" && kind !== "activation")
    .map((kind) => [kind, KINDS[kind], total(memory, kind)]);
  const rest = Math.max(peak - sum(parts.map(([, , n]) => n)), 0);
  const shown = [...parts, ["activation", "gradients and activations at the peak", rest]]
    .filter(([, , n]) => n);
  const drawn = shown.map(([css, name, n]) =>
    tag("span.part", { class: css, style: length(n, scale), title: `${name}: ${size(n)}` }));
  const key = shown.map(([css, name, n]) => keyed(css, name, size(n)));
  if (capacity) key.push(keyed("capacity-key", "capacity", size(capacity)));
  const label = `peak ${size(peak)}${capacity ? ` of ${size(capacity)}` : ""}`;
  return bar("", label, !fits(memory), [drawn, capacityLine(memory, scale)], key);
}

// The largest arrays at the peak, and those at rest by kind.
function arrays({ memory }) {
  return [memory.largest.length > 0 && atPeak(memory), atRest(memory)];
}

// The largest arrays at the peak.
function atPeak(memory) {
  const at = memory.at_peak && [" It is reached in ", tag("code", memory.at_peak), "."];
  return tag("div.arrays", tag("h3", "The peak"),
    tag("p.said", "The most that lives at once is ", tag("b", size(memory.peak)), ", an estimate.",
        at,
      " The largest arrays then:"),
    arrayBars(memory.largest, memory.largest[0].bytes, true));
}

// The arrays at rest, a folded list for each kind.
function atRest(memory) {
  const largest = most(memory.at_rest.map((one) => one.bytes), 1);
  const gradients = total(memory, "gradient");
  const lists = Object.keys(KINDS).filter((kind) => total(memory, kind)).map((kind) => {
    const found = memory.at_rest.filter((one) => one.kind === kind).sort((a, b) =>
      b.bytes - a.bytes);
    const more = found.slice(LISTED), left = size(sum(more.map((one) => one.bytes)));
    const head = [tag("span.part", { class: kind }), tag("b", KINDS[kind]), " ",
        size(total(memory, kind)),
      tag("span.quiet", ` in ${plural(found.length, "array")}`)];
    return tag("details.more.kind", { open: kind === "parameter" }, tag("summary", head),
      arrayBars(found.slice(0, LISTED), largest),
      more.length > 0 && tag("p.quiet", `and ${plural(more.length, "smaller array")} of ${left}`));
  });
  const said = ["The step is called with ", tag("b", size(memory.arguments)), " of arguments",
    gradients ? [", and its gradients are ", tag("b", size(gradients)), " more."] : "."];
  return tag("div.arrays", tag("h3", "At rest"), tag("p.said", said), lists);
}

// A bar for each array; `largest` are the bytes of one of the full width. Where it is `detailed`,
// it says below each bar what the array is.
function arrayBars(arrays, largest, detailed = false) {
  return tag("ol.bars", arrays.map((one) => tag("li", tag("span.of", notation(one.name, one.dims)),
    tag("span.rail", tag("span.part",
        { class: one.kind, style: length(one.bytes, Math.max(largest, 1)) })),
    tag("b.figure", size(one.bytes)),
    detailed && tag("span.below.quiet", KINDS[one.kind] ?? one.kind,
      `, ${one.shape.map(commas).join(" × ")} ${one.dtype} `, tag("span.source", one.source)))));
}

// -- Tables: every collective, and work that devices repeat ------------------------------------

// Every collective of the step, the most bytes first.
function collectives(e) {
  const found = e.ops.flatMap((op) => op.moves.map((move) => ({ move, op })))
    .sort((a, b) => b.move.count * b.move.bytes - a.move.count * a.move.bytes);
  if (!found.length) {
    return tag("p.said", "This step has no collectives: nothing travels between devices.");
  }
  const timed = found.some(({ move }) => move.seconds !== null);
  const columns = ["collective", "over", "pass", "times", "each", "in all", "time", "op and rule"]
    .map((name, i) => [name, i > 2 && i < 7 ? "figure" : "text"])
    .filter(([name]) => timed || name !== "time");
  const rows = found.map(({ move, op }) => {
    const bytes = move.count * move.bytes, seconds = move.count * (move.seconds ?? 0);
    return [tag("code", move.operation), chips(move.axes), move.phase,
      figure(commas(move.count), move.count), figure(size(move.bytes), move.bytes),
      figure(size(bytes), bytes),
      timed && figure(move.seconds === null ? "" : time(seconds), seconds),
      tag("td.wide", opLink(op, move.phase), " ", tag("span.source", op.source),
        tag("span.rule", ruleWords(move.why)))].filter(Boolean);
  });
  const count = sum(found.map(({ move }) => move.count));
  const bytes = sum(found.map(({ move }) => move.count * move.bytes));
  return tag("div", tag("p.said", tag("b", plural(count, "collective")), " a step, ",
      tag("b", size(bytes)),
    " on each device: the larger of what goes in and what comes out."),
    scroll("all collectives", sortable(table(columns, rows), "in all")));
}

// A link to an op in a pass of the flow.
function opLink(op, phase) {
  const title = `${op.name}[${op.dims.map((dim) => [dim.name, ...dim.axes].join("_")).join(", ")}]`;
  return tag("a", { href: `#${anchor(op.tag, phase)}`, title }, tag("code", op.name));
}

// The lines of code whose work devices repeat, those with most FLOPs first; nothing where there
// are none that matter.
function repeatedWork(e) {
  const found = e.repeated.filter((one) =>
    Math.max(one.share_of_flops, one.share_of_bytes) > REPEATED);
  if (!found.length) return null;
  const ops = new Map(e.ops.map((op) => [op.tag, op]));
  const columns = [["line", "text"], ["repeated", "text"], ["FLOPs", "figure"],
      ["of all", "figure"],
    ["results", "figure"], ["of all", "figure"], ["op, and a rule that would split it", "text"]];
  const rows = found.map((one) => {
    const op = ops.get(one.tag), phase = op && PHASES.find((name) => standsIn(op, name));
    const others = one.ops.filter((name) => name !== op?.name).slice(0, 2).map((name) =>
      `, ${name}`);
    return [tag("span.source", one.source || "no line"),
      [`${commas(one.copies)} times over `, chips(one.axes)],
      figure(work(one.flops), one.flops), figure(share(one.share_of_flops, 1), one.share_of_flops),
      figure(size(one.bytes), one.bytes), figure(share(one.share_of_bytes, 1), one.share_of_bytes),
      tag("td.wide", op && opLink(op, phase ?? "forward"), others,
        one.advice && tag("span.rule", one.advice))];
  });
  const flops = sum(found.map((one) => one.share_of_flops));
  return tag("div", tag("p.said", tag("b", share(flops, 1)),
      " of the FLOPs of a device are repeated by others. ",
      "That may be right, for norms say, ",
      "where the rule that would split them costs more than it saves."),
    scroll("work that devices repeat", sortable(table(columns, rows), "FLOPs")));
}

// Lets the headings of a table sort it; it is sorted by the heading `by`.
function sortable(table, by) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  table.classList.add("sortable");
  heads.forEach((head, column) => {
    const numbers = head.classList.contains("figure");
    const key = ({ cells }) =>
      (numbers ? Number(cells[column].dataset.value) : cells[column].textContent);
    const compare = (a, b) => (numbers ? key(a) - key(b) : key(a).localeCompare(key(b)));
    if (head.textContent === by) head.setAttribute("aria-sort", "descending");
    const button = tag("button.sort", { type: "button" }, head.textContent);
    head.replaceChildren(listen(button, "click", () => {
      const [first, second] = numbers ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = head.getAttribute("aria-sort") === first ? second : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
    }));
  });
  return table;
}

// -- What the whole document does --------------------------------------------------------------

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// The element, which from now on listens.
function listen(element, event, heard) {
  element.addEventListener(event, heard);
  return element;
}

// Moves the focus to what a key stands for, if there is anything.
function step(event, targets) {
  if (!(event.key in targets)) return;
  event.preventDefault();
  targets[event.key]?.focus();
}

// Shows the pass of an op, opens the op and goes there; whether there is one.
function reveal(id) {
  const target = id && document.getElementById(id), panel = target && target.closest(".panel");
  if (!panel) return false;
  document.getElementById(`phase-${panel.dataset.phase}`).checked = true;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  (target.querySelector("summary") || target).focus();
  target.scrollIntoView({ block: "center" });
  return true;
}

// Links to ops reveal them; arrow keys move from op to op, Escape closes.
function workLinksAndKeys() {
  listen(document, "click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || !reveal(link.getAttribute("href").slice(1))) return;
    event.preventDefault();
    if (view === "page") history.replaceState(null, "", link.hash);
  });
  listen(document, "keydown", (event) => {
    const summary = event.target.closest?.(".panel .op > summary");
    if (!summary) return;
    const ops = all(".op > summary", summary.closest(".panel")), i = ops.indexOf(summary);
    if (event.key === "Escape") summary.parentElement.open = false;
    step(event, { ArrowDown: ops[i + 1], ArrowUp: ops[i - 1], Home: ops[0], End: ops.at(-1) });
  });
}

// Dark or light: the system's choice until the button says otherwise.
function workTheme(button) {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `use ${isDark() ? "light" : "dark"} colours`);
  };
  try {
    root.dataset.theme = localStorage.getItem("meshdsl-theme") ?? "";
  } catch { /* a file may not store */ }
  listen(button, "click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("meshdsl-theme", root.dataset.theme);
    } catch { /* a file may not store */ }
    show();
  });
  listen(dark, "change", show);
  show();
}

// The section in view, in the navigation.
function followSections(links) {
  const seen = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((one) => one.isIntersecting)) {
      links.forEach((link) => link.toggleAttribute("aria-current", link.hash === `#${target.id}`));
    }
  }, { rootMargin: "-30% 0px -60% 0px" });
  all("main > section").forEach((section) => seen.observe(section));
}

// In a notebook, whose frame this is: as high as what it shows, and dark where the notebook is.
function fitFrame() {
  const frame = window.frameElement;
  if (!frame) return;
  const body = document.body, host = frame.ownerDocument.body;
  const height = () => `${Math.ceil(body.getBoundingClientRect().height)}px`;
  new ResizeObserver(() => { frame.style.height = height(); }).observe(body);
  const follow = () => {
    const dark = host.dataset.jpThemeLight === "false" || host.classList.contains("vscode-dark");
    const light = host.dataset.jpThemeLight === "true" || host.classList.contains("vscode-light");
    document.documentElement.dataset.theme = dark ? "dark" : light ? "light" : "";
  };
  new MutationObserver(follow).observe(host, { attributes: true });
  follow();
}

// A program in a notebook: the verdict, the mesh and the memory; all else is folded.
function programView(e) {
  const pipelines = e.pipelines.map((one) => pipeline(one, e.time?.step));
  const repeated = repeatedWork(e);
  return [tag("p.subject", tag("b", e.title), e.title && " ", e.layout), verdict(e), remedies(e),
    gauge(e.memory), tag("div.scroll.mesh-picture", meshPicture()), axisCards(e),
    folded("Op by op", flow(e)), pipelines.length > 0 && folded("Pipeline", pipelines),
    folded("Memory, array by array", arrays(e)), folded("Collectives", collectives(e)),
    repeated && folded("Repeated work", repeated)];
}

// -- A ledger: measured time beside the estimate -------------------------------------------------

// What was not foreseen, by its kind; the first thing that a ledger shows.
const UNFORESEEN = {
  surprise: "Collectives that no op of the record asked for",
  unknown: "Code that is no op",
  compiler: "Added by the compiler",
  changed: "Collectives that the compiler changed",
  absent: "Recorded, and not run",
  estimate: "Far from the estimate",
};

// The cells of measured time, and of the estimate where there is one.
function ledgerFigures(e, one, took) {
  const estimated = e.estimate !== null && [
    one.estimate === null ? figure("", -1) : figure(time(one.estimate), one.estimate),
    one.estimate ? figure(digits(took / one.estimate, 2), took / one.estimate) : figure("", -1),
  ];
  const slowest = one.slowest !== undefined && figure(time(one.slowest), one.slowest);
  return [figure(time(one.seconds), one.seconds), slowest, figure(time(one.waiting), one.waiting),
    estimated].flat().filter(Boolean);
}

// The headings of these cells.
function ledgerColumns(e, slowest) {
  const names = ["time", slowest && "slowest", "waits"];
  if (e.estimate !== null) names.push("estimate", "ratio");
  return names.filter(Boolean).map((name) => [name, "figure"]);
}

function ledgerEntries(e) {
  const columns = [...ledgerColumns(e, true), ["what"], ["op"], ["phase"], ["line"], ["rule"]];
  const rows = e.entries.map((one) => [
    ...ledgerFigures(e, one, one.kind === "collective" ? one.running : one.seconds),
    one.what, tag("code", one.op), one.phase, tag("span.source", one.source),
    tag("td.wide", ruleWords(one.rule), one.how && tag("span.rule", one.how))]);
  return scroll("time by op", sortable(table(columns, rows), "time"));
}

function ledgerTotals(e, name, totals) {
  const columns = [...ledgerColumns(e, false), [name]];
  const rows = totals.map((one) =>
    [...ledgerFigures(e, one, one.estimated), tag("td.wide", ruleWords(one.name))]);
  return scroll(`time by ${name}`, sortable(table(columns, rows), "time"));
}

const FEW = 8; // of one kind of what was not foreseen, before a reader asks for more

function ledgerUnforeseen(e) {
  const kinds = [...groups(e.unforeseen, (one) => one.kind)];
  if (!kinds.length) return tag("p.said", "The record foresaw everything that ran.");
  const item = (one) => tag("li", one.seconds > 0 && tag("b", time(one.seconds), " "), one.text);
  const list = (found) => tag("ul.notes", found.map(item));
  return kinds.map(([kind, found]) => tag("details.more", { open: kind === kinds[0][0] },
    tag("summary", UNFORESEEN[kind], ` (${commas(found.length)})`), list(found.slice(0, FEW)),
    found.length > FEW && folded("all others", list(found.slice(FEW)))));
}

// The whole of it; shares are rounded down, so that 100% is the whole.
function ledgerView(e) {
  document.title = [e.title, "ledger"].join(": ");
  const mean = (numbers) => sum(numbers) / (numbers.length || 1);
  const range = `${time(Math.min(...e.busy))} to ${time(Math.max(...e.busy))}`;
  const down = (part) => percent(Math.floor(part * 1000) / 1000);
  const estimate = e.estimate === null ? "no figures for an estimate"
    : `estimated ${time(e.estimate)} for ${e.target}`;
  const shown = [["a call", time(e.seconds), `the median of ${e.calls}; ${estimate}`],
    ["busy", time(mean(e.busy)), `${range} on ${plural(e.devices.length, "device")}`],
    ["waits", time(e.waiting), "for other devices in collectives"],
    ["attributed", down(e.attributed), `${down(e.attributed_computing)} of what is no collective`]];
  return [tag("h1", e.title), tag("p.subject", e.layout, " ", e.mesh.map(([name, n]) =>
      tag("span.nowrap", chip(name), ` ${commas(n)} `))),
    tag("h2", "Not foreseen"), ledgerUnforeseen(e),
    tag("dl.figures", shown.map((one) =>
      tag("div", tag("dt", one[0]), tag("dd", tag("b", one[1]), tag("span", one[2]))))),
    tag("h2", "By op"), ledgerEntries(e),
    e.by_rule.length > 0 && [tag("h2", "By rule"), ledgerTotals(e, "rule", e.by_rule)],
    tag("h2", "By line of the model"), ledgerTotals(e, "line", e.by_line)];
}

// What the sections of the page show, by their ids; those that show nothing are left out.
const SECTIONS = {
  mesh: (e) => [setClass(scroll("the mesh", meshPicture()), "mesh-picture"), axisCards(e)],
  flow,
  pipeline: (e) => e.pipelines.length > 0 && e.pipelines.map((one) => pipeline(one, e.time?.step)),
  timeline,
  memory: (e) => [gauge(e.memory), arrays(e)],
  tensors: parameters,
  collectives,
  repeated: repeatedWork,
  notes: (e) => e.notes.length > 0 && tag("ul.notes", e.notes.map((note) => tag("li", note))),
};

// The element with one more class.
function setClass(element, name) {
  element.classList.add(name);
  return element;
}

// The whole page.
function pageView(e) {
  document.title = [e.title, e.layout].filter(Boolean).join(": ");
  document.body.append(document.getElementById("page").content);
  document.querySelector(".hold").append(header(e));
  const links = document.querySelector("nav ul");
  for (const section of all("main > section")) {
    const shown = SECTIONS[section.id](e);
    if (!shown) section.remove();
    else {
      section.querySelector(".figure-area").append(...[shown].flat(Infinity).filter(Boolean));
      links.append(tag("li", tag("a", { href: `#${section.id}` },
          section.querySelector("h2").textContent)));
    }
  }
  workTheme(document.querySelector(".theme"));
  followSections(all("a", links));
  reveal(location.hash.slice(1));
}

document.body.prepend(patterns());
workLinksAndKeys();
if (view === "page") pageView(data);
else {
  document.body.classList.add("fragment");
  const views = { tensor: tensorView, program: programView, ledger: ledgerView };
  const shown = views[view](data);
  document.body.append(...[shown].flat(Infinity).filter(Boolean));
  fitFrame();
}
