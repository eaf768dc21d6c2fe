// Everything can be seen without this script. It adds values that are read off by the pointer or by the arrow keys.
(() => {
  "use strict";
  const shown = (value) => (Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(3) : String(Number(value.toPrecision(5))));
  for (const section of document.querySelectorAll("section")) {
    const svg = section.querySelector(".curves"), cursor = svg.querySelector(".cursor"), output = section.querySelector("output");
    const { box: [left, right, , , x0, x1], x: words, curves } = JSON.parse(section.querySelector("script").textContent);
    let at = null;
    const nearest = (values, x) => {
      let low = 0, high = values.length - 1;
      while (low < high) { const middle = (low + high) >> 1; if (values[middle] < x) low = middle + 1; else high = middle; }
      return low && x - values[low - 1] < values[low] - x ? low - 1 : low;
    };
    const show = (x) => {
      at = Math.min(x1, Math.max(x0, x));
      const place = left + ((at - x0) / (x1 - x0)) * (right - left);
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      cursor.setAttribute("visibility", "visible");
      const parts = curves.filter((curve) => curve.x.length && document.getElementById(`run-${curve.run}`).checked).map((curve) => {
        const i = nearest(curve.x, at), part = document.createElement("span"), name = document.createElement("b");
        part.className = `a${curve.run % 6}`;
        name.textContent = curve.run + 1;
        part.append(name, ` ${shown(curve.y[i])} at ${shown(curve.x[i])}`);
        return part;
      });
      output.replaceChildren(`${words}: `, ...parts);
      output.hidden = false;
    };
    svg.addEventListener("pointermove", (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      show(x0 + ((point.x - left) / (right - left)) * (x1 - x0));
    });
    svg.addEventListener("keydown", (event) => {
      const far = (x1 - x0) / (event.shiftKey ? 10 : 100), from = at ?? x1;
      const to = { ArrowLeft: from - far, ArrowRight: from + far, Home: x0, End: x1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }
})();
