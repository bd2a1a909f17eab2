"use strict";
const told = JSON.parse(document.getElementById("told").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const chosen = document.getElementById("metric");

// names of colours become those of the page, in whatever theme it is shown
function painted(node, colour) {
  if (typeof node === "string") return node.startsWith("--") ? colour(node.slice(2)) : node;
  if (Array.isArray(node)) return node.map((each) => painted(each, colour));
  if (node === null || typeof node !== "object") return node;
  return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, painted(value, colour)]));
}

function config(colour) {
  const ink = colour("ink"), line = colour("line"), soft = colour("soft");
  return {
    background: "transparent", font: "system-ui, sans-serif",
    axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelLimit: 90,
            labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" },
    legend: { labelColor: ink, titleColor: ink, labelLimit: 220, labelFontSize: 12, columns: window.innerWidth < 560 ? 1 : 3 },
    view: { stroke: null },
  };
}

async function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue("--" + name).trim();
  for (const [id, chart] of Object.entries(told)) {
    const place = document.getElementById(id);
    if (!place) continue;
    const rows = { ...chart.rows };
    if (id === "curve" && chosen) {
      for (const kind of ["kept", "lost", "gaps"]) rows[kind] = rows[kind].filter((row) => row.name === chosen.value);
    }
    const spec = painted(chart.spec, colour);
    spec.datasets = rows;
    if (spec.layer) spec.layer = spec.layer.filter((layer) => rows[layer.data.name].length);
    if (spec.layer ? !spec.layer.length : !rows[spec.data.name].length) continue;
    spec.config = config(colour);
    await vegaEmbed(place, spec, { actions: false, renderer: "svg", mode: "vega-lite" });
  }
  document.documentElement.dataset.drawn = "yes";
}

dark.addEventListener("change", draw);
if (chosen) chosen.addEventListener("change", draw);
draw();
