// Everything can be seen without this script. It adds values that are read off by the pointer or by
// the arrow keys.
(() => {
  "use strict";
  const shown = (value) => {
    const size = Math.abs(value);
    return size >= 1e5 || (value && size < 1e-3)
      ? value.toExponential(3)
      : String(Number(value.toPrecision(5)));
  };
  // The index of the value that is nearest to x, in ascending values.
  const nearest = (values, x) => {
    let low = 0;
    let high = values.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low && x - values[low - 1] < values[low] - x ? low - 1 : low;
  };
  for (const section of document.querySelectorAll("section")) {
    const svg = section.querySelector(".curves");
    const cursor = svg.querySelector(".cursor");
    const output = section.querySelector("output");
    const data = JSON.parse(section.querySelector("script").textContent);
    const { box: [left, right, , , x0, x1], x: words, curves } = data;
    let at = null;
    const show = (x) => {
      at = Math.min(x1, Math.max(x0, x));
      const place = left + ((at - x0) / (x1 - x0)) * (right - left);
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      cursor.setAttribute("visibility", "visible");
      const isShown = (curve) =>
        curve.x.length && document.getElementById(`run-${curve.run}`).checked;
      const parts = curves.filter(isShown).map((curve) => {
        const i = nearest(curve.x, at);
        const part = document.createElement("span");
        const name = document.createElement("b");
        part.className = `a${curve.run % 6}`;
        name.textContent = curve.run + 1;
        part.append(name, ` ${shown(curve.y[i])} at ${shown(curve.x[i])}`);
        return part;
      });
      output.replaceChildren(`${words}: `, ...parts);
      output.hidden = false;
    };
    svg.addEventListener("pointermove", (event) => {
      const pointer = new DOMPoint(event.clientX, event.clientY);
      const point = pointer.matrixTransform(svg.getScreenCTM().inverse());
      show(x0 + ((point.x - left) / (right - left)) * (x1 - x0));
    });
    svg.addEventListener("keydown", (event) => {
      const far = (x1 - x0) / (event.shiftKey ? 10 : 100);
      const from = at ?? x1;
      const to = { ArrowLeft: from - far, ArrowRight: from + far, Home: x0, End: x1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }
})();
