// Everything can be read without this script. It adds sorting, zooming, arrow keys, links that open
// what they point to, and the choice of dark or light.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const root = document.body;

  // Dark or light: the system's choice until the button says otherwise.
  const theme = document.querySelector(".theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem("meshdsl-theme"); } catch { return null; }
  };
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const show = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `use ${isDark() ? "light" : "dark"} colours`);
  };
  if (stored()) root.dataset.theme = stored();
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("meshdsl-theme", root.dataset.theme);
    } catch { /* a file may not store */ }
    show();
  });
  dark.addEventListener("change", show);
  show();

  // A link to an op shows its pass, opens it and goes there.
  const reveal = (id) => {
    const target = id && document.getElementById(id);
    if (!target) return false;
    const panel = target.closest(".panel");
    if (panel) document.getElementById(panel.id.replace("-panel-", "-")).checked = true;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    (target.querySelector("summary") || target).focus();
    target.scrollIntoView({ block: "center" });
    return true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest(".data a[href^='#']");
    if (link && reveal(link.hash.slice(1))) {
      event.preventDefault();
      history.replaceState(null, "", link.hash);
    }
  });
  const linked = location.hash.slice(1);
  if (linked && document.getElementById(linked)?.closest(".panel")) reveal(linked);

  // Arrow keys move from op to op, Escape closes.
  document.addEventListener("keydown", (event) => {
    const summary = event.target.closest?.(".panel .op > summary");
    if (!summary) return;
    const ops = all(".op > summary", summary.closest(".panel"));
    const i = ops.indexOf(summary);
    const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: ops.length - 1 }[event.key];
    if (to !== undefined && ops[to]) { event.preventDefault(); ops[to].focus(); }
    if (event.key === "Escape") summary.parentElement.open = false;
  });

  // The timeline: one stop for Tab, arrows inside, up and down to the next stream.
  for (const timeline of all(".timeline")) {
    const zoomed = timeline.querySelector(".zoomed");
    const frame = timeline.querySelector(".scroll");
    const picked = timeline.querySelector(".picked");
    const lanes = all(".lane:not(.clock)", timeline)
      .map((lane) => all(".block", lane))
      .filter((lane) => lane.length);
    const blocks = lanes.flat();
    let zoom = 1;
    const set = (value) => {
      const middle = (frame.scrollLeft + frame.clientWidth / 2) / frame.scrollWidth;
      zoom = Math.min(64, Math.max(1, value));
      zoomed.style.width = `${100 * zoom}%`;
      zoomed.dataset.zoom = zoom;
      frame.scrollLeft = middle * frame.scrollWidth - frame.clientWidth / 2;
    };
    const bar = document.createElement("div");
    bar.className = "zoom";
    const zooms = [
      ["+", "zoom in", () => zoom * 2],
      ["\u2212", "zoom out", () => zoom / 2],
      ["Whole step", "show the whole step", () => 1],
    ];
    for (const [text, label, change] of zooms) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", () => set(change()));
      bar.append(button);
    }
    timeline.prepend(bar);
    const pick = (block, focus) => {
      blocks.forEach((other) => {
        other.tabIndex = other === block ? 0 : -1;
        other.classList.toggle("on", other === block);
      });
      picked.textContent = block.dataset.said;
      const { op, phase } = block.dataset;
      const target = op && all(`[id$="-${phase}-${op}"]`)[0];
      if (target) {
        const link = document.createElement("a");
        link.href = `#${target.id}`;
        link.textContent = "show the op";
        link.addEventListener("click", (event) => { event.preventDefault(); reveal(target.id); });
        picked.append(" (", link, ")");
      }
      if (focus) block.focus();
    };
    blocks.forEach((block, i) => {
      block.dataset.said = block.title;
      block.setAttribute("role", "button");
      block.setAttribute("aria-label", block.title);
      block.tabIndex = i ? -1 : 0;
    });
    timeline.addEventListener("click", (event) => {
      const block = event.target.closest(".track .block");
      if (block) pick(block, true);
    });
    timeline.addEventListener("focusin", (event) => {
      if (blocks.includes(event.target)) pick(event.target, false);
    });
    timeline.addEventListener("keydown", (event) => {
      if (event.key === "+" || event.key === "=") return set(zoom * 2);
      if (event.key === "-") return set(zoom / 2);
      const block = event.target.closest(".track .block");
      if (!block) return;
      const row = lanes.findIndex((lane) => lane.includes(block));
      const at = lanes[row].indexOf(block);
      const away = (other) => Math.abs(other.offsetLeft - block.offsetLeft);
      const nearest = (lane) =>
        lane && lane.reduce((best, other) => (away(other) < away(best) ? other : best));
      const to = {
        ArrowRight: lanes[row][at + 1],
        ArrowLeft: lanes[row][at - 1],
        ArrowDown: nearest(lanes[row + 1]),
        ArrowUp: nearest(lanes[row - 1]),
        Home: lanes[row][0],
        End: lanes[row].at(-1),
      };
      if (event.key in to) { event.preventDefault(); if (to[event.key]) pick(to[event.key], true); }
    });
  }

  // Headings of tables sort.
  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numbers = head.classList.contains("figure");
        const first = numbers ? "descending" : "ascending";
        const second = numbers ? "ascending" : "descending";
        const order = head.getAttribute("aria-sort") === first ? second : first;
        all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        const key = (row) => {
          const cell = row.cells[column];
          return numbers ? Number(cell.dataset.value || 0) : cell.textContent;
        };
        const compare = (a, b) => numbers ? key(a) - key(b) : key(a).localeCompare(key(b));
        const sign = order === "ascending" ? 1 : -1;
        body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
      });
    });
  }

  // The section in view, in the navigation.
  const links = all("nav a");
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      const hash = `#${entry.target.id}`;
      links.forEach((link) => link.toggleAttribute("aria-current", link.hash === hash));
    }
  }, { rootMargin: "-30% 0px -60% 0px" });
  all("main > section").forEach((section) => seen.observe(section));
})();
