"use strict";
// Plots and tables are complete without this script; it adds toggling of lines, read-outs and sorting.
for (const box of document.querySelectorAll("fieldset.legend")) {
  const panels = document.querySelector(`[data-chart="${box.dataset.for}"]`);
  box.addEventListener("change", (event) => {
    const index = event.target.dataset.series;
    for (const group of panels.querySelectorAll(`g[data-series="${index}"]`)) {
      group.style.display = event.target.checked ? "" : "none";
    }
  });
}

for (const panel of document.querySelectorAll(".panel")) {
  const svg = panel.querySelector("svg");
  const source = panel.querySelector("script");
  if (!source) continue;
  const data = JSON.parse(source.textContent);
  const [px0, px1, x0, x1] = data.x;
  const [py0, py1, y0, y1] = data.y;
  const toX = (v) => px0 + ((v - x0) / (x1 - x0)) * (px1 - px0);
  const toY = (v) => py0 + ((v - y0) / (y1 - y0)) * (py1 - py0);
  const cursor = svg.querySelector(".cursor");
  const [line, dot] = [cursor.querySelector("line"), cursor.querySelector("circle")];
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  panel.append(tip);
  const text = (v) => Number(v.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 6 });

  const hide = () => {
    tip.hidden = true;
    cursor.style.display = "none";
  };
  const move = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = null;
    data.series.forEach((series, index) => {
      if (svg.querySelector(`g[data-series="${index}"]`).style.display === "none") return;
      series.x.forEach((x, i) => {
        const distance = Math.hypot(toX(x) - point.x, toY(series.y[i]) - point.y);
        if (!best || distance < best.distance) best = { distance, series, i };
      });
    });
    if (!best || best.distance > 60) return hide();
    const { series, i } = best;
    const [cx, cy] = [toX(series.x[i]), toY(series.y[i])];
    cursor.style.display = "";
    line.setAttribute("x1", cx);
    line.setAttribute("x2", cx);
    line.setAttribute("y1", py0);
    line.setAttribute("y2", py1);
    dot.setAttribute("cx", cx);
    dot.setAttribute("cy", cy);
    tip.replaceChildren();
    const mark = document.createElement("i");
    mark.style.background = `var(--c${series.c})`;
    const note = series.note ? `, ${series.note[i]}` : "";
    tip.append(mark, `${series.name}${note}`, document.createElement("br"), `${text(series.y[i])} at ${text(series.x[i])}`);
    tip.hidden = false;
    const scale = svg.clientWidth / svg.viewBox.baseVal.width;
    const left = Math.min(cx * scale + 12, panel.clientWidth - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, cy * scale - tip.offsetHeight - 10)}px`;
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", hide);
}

for (const table of document.querySelectorAll("figure.table table")) {
  const heads = [...table.querySelectorAll("thead tr:last-child th")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const [s, t] = [key(a), key(b)];
        if (s === "" || t === "") return (s === "") - (t === "");
        const [m, n] = [Number(s), Number(t)];
        const order = Number.isNaN(m) || Number.isNaN(n) ? s.localeCompare(t) : m - n;
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}
