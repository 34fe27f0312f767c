"use strict";
// Reading values off the charts: one cursor over every chart of the page, values in the one that is pointed at.
(() => {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const charts = [...document.querySelectorAll("[data-chart]")]
    .filter((node) => data[node.dataset.chart])
    .map((node) => ({ node, ...data[node.dataset.chart], svg: node.querySelector("svg"), cursor: node.querySelector(".cursor"), tip: node.querySelector(".tip") }));
  const hidden = new Set();

  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    const plain = value === 0 ? "0" : size >= 1e6 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
    return plain.replace(/-/g, "−");
  };
  window.uecr = { shown };

  const inUnit = (chart, value) => (chart.percent && value !== null ? `${shown(100 * value)} %` : shown(value));
  const place = (chart, step, value) => {
    const [left, top, right, bottom] = chart.box;
    return [
      left + ((step - chart.x[0]) / (chart.x[1] - chart.x[0])) * (right - left),
      top + ((chart.y[1] - value) / (chart.y[1] - chart.y[0])) * (bottom - top),
    ];
  };
  const nearest = (chart, step) => {
    const steps = chart.series.flatMap((line) => line.x);
    return steps.reduce((best, x) => (Math.abs(x - step) < Math.abs(best - step) ? x : best), steps[0]);
  };
  const make = (name, attributes) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const visible = (line, chart) => !(chart.runs && hidden.has(line.colour));

  function mark(chart, step) {
    chart.cursor.replaceChildren();
    if (step < chart.x[0] || step > chart.x[1]) return;
    const [x] = place(chart, step, 0);
    chart.cursor.append(make("line", { x1: x, x2: x, y1: chart.box[1], y2: chart.box[3] }));
    for (const line of chart.series) {
      const index = line.x.indexOf(step);
      if (index < 0 || line.y[index] === null || !visible(line, chart) || chart.stacked) continue;
      const [cx, cy] = place(chart, step, line.y[index]);
      chart.cursor.append(make("circle", { cx, cy, r: 4, class: `run-${line.colour}` }));
    }
  }

  function tell(chart, step) {
    const head = document.createElement("b");
    head.textContent = `step ${step}`;
    chart.tip.replaceChildren(head);
    for (const line of chart.series) {
      const index = line.x.indexOf(step);
      if (index < 0 || !visible(line, chart)) continue;
      const row = document.createElement("div");
      const name = document.createElement("span");
      const value = document.createElement("span");
      name.className = `key run-${line.colour}`;
      if (!chart.stacked && chart.series.length > 1) name.append(document.createElement("i"));
      name.append(chart.series.length > 1 ? line.label : "");
      value.textContent = inUnit(chart, line.y[index]);
      if (line.low) value.textContent += ` (${inUnit(chart, line.low[index])} to ${inUnit(chart, line.high[index])})`;
      row.append(name, value);
      chart.tip.append(row);
    }
    const share = (place(chart, step, 0)[0] / chart.width) * 100;
    chart.tip.style.left = share < 55 ? `calc(${share}% + 10px)` : "auto";
    chart.tip.style.right = share < 55 ? "auto" : `calc(${100 - share}% + 10px)`;
    chart.tip.classList.add("on");
  }

  function show(active, step) {
    active.step = step;
    for (const chart of charts) mark(chart, step);
    tell(active, step);
  }

  function clear() {
    for (const chart of charts) {
      chart.cursor.replaceChildren();
      chart.tip.classList.remove("on");
    }
  }

  for (const chart of charts) {
    const point = (event) => {
      const frame = chart.svg.getBoundingClientRect();
      const x = ((event.clientX - frame.left) / frame.width) * chart.width;
      const step = chart.x[0] + ((x - chart.box[0]) / (chart.box[2] - chart.box[0])) * (chart.x[1] - chart.x[0]);
      clear();
      show(chart, nearest(chart, step));
    };
    chart.svg.addEventListener("pointermove", point);
    chart.svg.addEventListener("pointerdown", point);
    chart.svg.addEventListener("pointerleave", clear);
    chart.node.addEventListener("blur", clear);
    chart.node.addEventListener("keydown", (event) => {
      const steps = [...new Set(chart.series.flatMap((line) => line.x))].sort((a, b) => a - b);
      const at = steps.indexOf(chart.step ?? steps[0]);
      const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: steps.length - 1 }[event.key];
      if (event.key === "Escape") clear();
      if (next === undefined) return;
      event.preventDefault();
      clear();
      show(chart, steps[Math.min(Math.max(next, 0), steps.length - 1)]);
    });
  }

  for (const button of document.querySelectorAll(".legend .toggle")) {
    button.addEventListener("click", () => {
      const run = Number(button.dataset.run);
      hidden.has(run) ? hidden.delete(run) : hidden.add(run);
      button.setAttribute("aria-pressed", String(!hidden.has(run)));
      for (const chart of charts.filter((one) => one.runs))
        for (const node of chart.svg.querySelectorAll(`.run-${run}`)) node.style.display = hidden.has(run) ? "none" : "";
    });
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((node) => (node.open = true)));
})();
