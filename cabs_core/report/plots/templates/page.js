"use strict";
// The page is complete without this script. It makes the drawings interactive and sorts tables.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "300px" });
for (const figure of document.querySelectorAll("figure.chart")) near.observe(figure);

// The library is kept as text until a drawing comes near, so that a page opens at once.
let library;
function loadVega() {
  library ??= new Promise((done) => {
    const script = document.createElement("script");
    script.textContent = document.getElementById("vega").textContent;
    document.head.append(script);
    done();
  });
  return library;
}

async function draw(figure) {
  near.unobserve(figure);
  const drawing = figure.querySelector(".drawing");
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const narrow = drawing.clientWidth < 560;
  const param = spec.params?.find((p) => p.name === "narrow");
  if (param) param.value = narrow;
  if (narrow) spec.config.axis.labelLimit = 110;
  const place = document.createElement("div");
  place.className = "live";
  drawing.append(place);
  await loadVega();
  const { view } = await vegaEmbed(place, spec, {
    actions: false, ast: true, logLevel: 1, renderer: "svg", tooltip: { disableDefaultStyle: true },
  });
  drawing.querySelector(":scope > svg")?.remove();
  const update = () => {
    for (const input of figure.querySelectorAll("[data-choice]:checked")) view.signal(`${input.dataset.choice}_chosen`, input.value);
    const legend = figure.querySelectorAll(".legend input");
    if (legend.length && "hidden" in view.getState().signals) view.signal("hidden", [...legend].filter((i) => !i.checked).map((i) => i.value));
    view.runAsync();
  };
  figure.addEventListener("change", update);
  update();
  figure.dataset.ready = "";
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.from).textContent);
    button.textContent = "Copied";
  });
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
