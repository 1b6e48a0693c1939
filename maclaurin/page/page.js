"use strict";

// Figures: drawn from the JSON beside them, in the colours of the page, again when those change.
const dark = matchMedia("(prefers-color-scheme: dark)");

function colours() {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, line, paper] = ["--ink", "--soft", "--line", "--paper"].map((name) => style.getPropertyValue(name).trim());
  const layout = { "font.color": ink, "hoverlabel.bgcolor": paper, "hoverlabel.bordercolor": line, "hoverlabel.font.color": ink };
  for (const axis of ["xaxis", "yaxis"]) {
    layout[axis + ".gridcolor"] = line;
    layout[axis + ".linecolor"] = soft;
    layout[axis + ".tickcolor"] = soft;
  }
  return layout;
}

// A legend takes more lines on a narrow screen: the figure grows by them, so that the plot above keeps its height.
function fit(plot) {
  const legend = plot.querySelector(".legend");
  if (!legend) return;
  plot.style.height = `${360 + legend.getBoundingClientRect().height}px`;
  Plotly.Plots.resize(plot);
}

// Losses can be read against steps or tokens: every point carries both.
function axisButtons(plot, axes) {
  const bar = document.createElement("div");
  bar.className = "axes";
  bar.append("against");
  const buttons = axes.map(([label, title], column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.setAttribute("aria-pressed", String(column === 0));
    button.addEventListener("click", () => {
      const x = plot.data.map((trace) => trace.customdata.map((point) => point[column]));
      Plotly.update(plot, { x }, { "xaxis.title.text": title, "xaxis.autorange": true });
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    });
    return button;
  });
  bar.append(...buttons);
  plot.before(bar);
}

const plots = [...document.querySelectorAll("script[data-for]")].map((script) => {
  const plot = document.getElementById(script.dataset.for);
  const { data, layout } = JSON.parse(script.textContent);
  const config = {
    responsive: true,
    displaylogo: false,
    // what it can do without a server; others would send the figure to one
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"], ["hoverCompareCartesian", "hoverClosestCartesian"]],
    toImageButtonOptions: { filename: plot.id, width: 900, height: 560, scale: 3 },
  };
  Plotly.newPlot(plot, data, layout, config).then(() => Plotly.relayout(plot, colours())).then(() => fit(plot));
  if (layout.meta && layout.meta.axes) axisButtons(plot, layout.meta.axes);
  return plot;
});
addEventListener("resize", () => plots.forEach(fit));
dark.addEventListener("change", () => plots.forEach((plot) => Plotly.relayout(plot, colours())));

// Tables: a click on a header sorts by it, a second one the other way round; rows without a value stay last.
function sortBy(table, column) {
  const headers = [...table.tHead.rows[0].cells];
  const header = headers[column];
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  const numeric = header.classList.contains("number");
  const key = (row) => {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent;
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return (numeric ? a - b : a.localeCompare(b)) * (ascending ? 1 : -1);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
  headers.forEach((other) => other.setAttribute("aria-sort", "none"));
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sortBy(table, column));
  });
}
