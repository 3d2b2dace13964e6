// Draws the report's charts and handles pointer, keys and buttons; every number comes from the JSON in the page.
"use strict";
(() => {
  const study = JSON.parse(document.getElementById("study").textContent);
  const shown = { axis: "steps", hidden: new Set() };
  const WIDE = 620; // pixels; if narrower, values appear below the chart instead of floating over it
  const MARGIN = { top: 14, right: 16, bottom: 46, left: 54 };

  // --- numbers -------------------------------------------------------------------------------------------------

  const withCommas = (value, decimals) =>
    value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "");

  const shortSteps = (value) =>
    value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1e3 ? `${+(value / 1e3).toPrecision(3)}k` : `${value}`;

  const sayTime = (hours) => {
    const seconds = Math.round(hours * 3600);
    const parts = [[Math.floor(seconds / 3600), "h"], [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"]];
    const first = parts.findIndex(([amount]) => amount > 0);
    return first < 0 ? "0 s" : parts.slice(first, first + 2).map(([amount, unit]) => `${amount} ${unit}`).join(" ");
  };

  const sayPosition = (axis, value) => (axis === "steps" ? `${withCommas(value, 0)} steps` : sayTime(value));

  // What the horizontal axis counts; training of less than an hour is counted in minutes.
  const unitOf = (end) =>
    shown.axis === "steps"
      ? { title: "agent steps", factor: 1 }
      : end < 1 ? { title: "minutes of training", factor: 60 } : { title: "hours of training", factor: 1 };

  // Steps of 1, 2, 2.5 or 5 that cover low to high with about `wanted` ticks.
  const niceTicks = (low, high, wanted) => {
    const raw = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
    const first = Math.ceil(low / step - 1e-9);
    const last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, index) => +((first + index) * step).toPrecision(12));
  };

  const tickDecimals = (ticks) => {
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-6 ? digits : digits + 1; // 0.25
  };

  // --- drawing -------------------------------------------------------------------------------------------------

  const draw = (name, attributes, parent, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };

  const visibleCurves = (panel) =>
    panel.curves.map((curve, arm) => ({ curve, arm })).filter(({ curve, arm }) => curve && !shown.hidden.has(arm));

  const scoreRange = (curves, threshold) => {
    let [low, high] = [Infinity, -Infinity];
    for (const { curve } of curves) {
      curve.mean.forEach((mean, index) => {
        if (mean === null) return;
        low = Math.min(low, mean - (curve.error[index] ?? 0));
        high = Math.max(high, mean + (curve.error[index] ?? 0));
      });
    }
    if (threshold !== null) [low, high] = [Math.min(low, threshold), Math.max(high, threshold)];
    if (low > 0 && low < 0.35 * high) low = 0; // include zero when it is near
    const room = 0.04 * (high - low) || 1;
    return [low === 0 ? 0 : low - room, high + room];
  };

  // A path through the known points, interrupted where one is missing.
  const pathThrough = (points) => {
    let [path, lifted] = ["", true];
    for (const point of points) {
      if (point) path += `${lifted ? "M" : "L"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      lifted = !point;
    }
    return path;
  };

  // Stretches of consecutive points with an error, each a closed outline.
  const bandAround = (curve, x, y) => {
    const outlines = [];
    let stretch = [];
    const close = () => {
      if (stretch.length > 1) {
        const upper = stretch.map((i) => `${x(i).toFixed(1)} ${y(curve.mean[i] + curve.error[i]).toFixed(1)}`);
        const lower = stretch.map((i) => `${x(i).toFixed(1)} ${y(curve.mean[i] - curve.error[i]).toFixed(1)}`).reverse();
        outlines.push(`M${upper.join("L")}L${lower.join("L")}Z`);
      }
      stretch = [];
    };
    curve.mean.forEach((mean, i) => (mean !== null && curve.error[i] !== null ? stretch.push(i) : close()));
    close();
    return outlines.join("");
  };

  const drawCurve = (svg, { curve, arm }, x, y) => {
    const colour = `var(--arm-${arm})`;
    const dash = study.arms[arm].dash.join(" ");
    const style = `stroke:${colour};` + (dash ? `stroke-dasharray:${dash}` : "");
    const most = Math.max(...curve.count);
    const at = (i) => (curve.mean[i] === null ? null : [x(i), y(curve.mean[i])]);
    const whole = curve.mean.map((_, i) => (curve.count[i] === most ? at(i) : null));
    const partial = curve.mean.map((_, i) => {
      const touches = curve.count[i] < most || curve.count[i - 1] < most || curve.count[i + 1] < most;
      return touches ? at(i) : null;
    });
    draw("path", { d: pathThrough(partial), class: "curve partial", style }, svg);
    draw("path", { d: pathThrough(whole), class: "curve", style, "data-arm": arm }, svg);
  };

  const drawAxes = (svg, frame, panel, y) => {
    const { left, right, top, bottom } = frame;
    const scoreTicks = niceTicks(...frame.range, 5);
    for (const tick of scoreTicks) {
      draw("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "gridline" }, svg);
      draw("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, svg, withCommas(tick, tickDecimals(scoreTicks)));
    }
    const unit = unitOf(panel.end);
    const positionTicks = niceTicks(0, panel.end * unit.factor, right - left > 480 ? 8 : 4);
    for (const tick of positionTicks) {
      const place = left + (tick / unit.factor / panel.end) * (right - left);
      const label = shown.axis === "steps" ? shortSteps(tick) : withCommas(tick, tickDecimals(positionTicks));
      draw("line", { x1: place, x2: place, y1: bottom, y2: bottom + 5, class: "axis" }, svg);
      draw("text", { x: place, y: bottom + 19, "text-anchor": "middle" }, svg, label);
    }
    draw("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }, svg);
    draw("text", { x: (left + right) / 2, y: bottom + 40, "text-anchor": "middle" }, svg, unit.title);
    draw("text", { x: 12, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + bottom) / 2})` }, svg, "score");
  };

  const drawThreshold = (svg, frame, { threshold, meaning }, y) => {
    if (threshold === null) return;
    draw("line", { x1: frame.left, x2: frame.right, y1: y(threshold), y2: y(threshold), class: "threshold" }, svg);
    if (frame.right > WIDE) draw("text", { x: frame.left + 6, y: y(threshold) - 6 }, svg, meaning);
  };

  const redraw = (chart) => {
    const data = study.environments[+chart.element.dataset.environment];
    const panel = data[shown.axis];
    const width = Math.max(260, chart.plot.clientWidth);
    const height = Math.round(Math.min(400, Math.max(240, width * 0.42)));
    chart.element.classList.toggle("wide", width >= WIDE);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, chart.plot);
    chart.plot.replaceChildren(svg);
    const curves = visibleCurves(panel);
    chart.view = null;
    if (!curves.length) {
      const message = panel.curves.some(Boolean)
        ? "Every arm with runs here is hidden."
        : shown.axis === "hours" && data.steps.curves.some(Boolean) ? "No time has been recorded yet." : data.empty;
      draw("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "empty" }, svg, message);
      return place(chart, null);
    }
    const frame = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    frame.range = scoreRange(curves, data.threshold);
    const [low, high] = frame.range;
    const x = (index) => frame.left + ((index + 1) / panel.points) * (frame.right - frame.left);
    const y = (score) => frame.bottom - ((score - low) / (high - low)) * (frame.bottom - frame.top);
    drawAxes(svg, frame, panel, y);
    drawThreshold(svg, frame, data, y);
    for (const { curve, arm } of curves) draw("path", { d: bandAround(curve, x, y), class: "band", fill: `var(--arm-${arm})` }, svg);
    for (const item of curves) drawCurve(svg, item, x, y);
    const cursor = draw("g", { class: "cursor" }, svg);
    chart.view = { frame, x, y, panel, curves, cursor, width, decimals: data.decimals };
    chart.plot.setAttribute("aria-valuemax", panel.points - 1);
    return place(chart, chart.index);
  };

  // --- reading values ------------------------------------------------------------------------------------------

  const valuesAt = (view, index) =>
    view.curves
      .filter(({ curve }) => curve.mean[index] !== null)
      .map(({ curve, arm }) => ({ arm, mean: curve.mean[index], error: curve.error[index], count: curve.count[index] }))
      .sort((one, other) => other.mean - one.mean);

  const sayValue = (view, { mean, error }) =>
    withCommas(mean, view.decimals) + (error === null ? "" : ` ± ${withCommas(error, view.decimals)}`);

  const fillReadout = (chart, position, values) => {
    const title = document.createElement("p");
    title.textContent = position;
    const table = document.createElement("table");
    for (const value of values) {
      const row = table.insertRow();
      const name = document.createElement("th");
      name.scope = "row";
      name.append(document.querySelector(`.arm[data-arm="${value.arm}"] .swatch`).cloneNode(true), study.arms[value.arm].name);
      row.append(name);
      row.insertCell().textContent = sayValue(chart.view, value);
      const runs = row.insertCell();
      runs.className = "runs";
      runs.textContent = `${value.count} ${value.count === 1 ? "run" : "runs"}`;
    }
    chart.readout.replaceChildren(title, table);
  };

  // Move the crosshair to a point of the grid, or remove it (null). Below a narrow chart, the last values stay.
  const place = (chart, wanted) => {
    const view = chart.view;
    chart.index = wanted;
    if (view) view.cursor.replaceChildren();
    chart.readout.hidden = true;
    if (!view) return;
    const isWide = chart.element.classList.contains("wide");
    if (wanted === null && isWide) return;
    const index = Math.min(view.panel.points - 1, Math.max(0, wanted ?? view.panel.points - 1));
    const values = valuesAt(view, index);
    const position = sayPosition(shown.axis, (view.panel.end * (index + 1)) / view.panel.points);
    chart.plot.setAttribute("aria-valuenow", index);
    chart.plot.setAttribute("aria-valuetext", [position, ...values.map((value) => `${study.arms[value.arm].name} ${sayValue(view, value)}`)].join(", "));
    fillReadout(chart, position, values);
    chart.readout.hidden = false;
    if (wanted === null) return;
    chart.index = index;
    const at = view.x(index);
    draw("line", { x1: at, x2: at, y1: view.frame.top, y2: view.frame.bottom, class: "crosshair" }, view.cursor);
    for (const { arm, mean } of values) draw("circle", { cx: at, cy: view.y(mean), r: 4.5, class: "dot", fill: `var(--arm-${arm})` }, view.cursor);
    const isRight = at > view.width / 2;
    chart.readout.style.left = isWide && !isRight ? `${at + 16}px` : "auto";
    chart.readout.style.right = isWide && isRight ? `${view.width - at + 16}px` : "auto";
  };

  const indexUnder = (chart, event) => {
    const { frame, panel, width } = chart.view;
    const box = chart.plot.getBoundingClientRect();
    const across = ((event.clientX - box.left) * width) / box.width;
    const index = Math.round(((across - frame.left) / (frame.right - frame.left)) * panel.points) - 1;
    return Math.min(panel.points - 1, Math.max(0, index));
  };

  const nextIndex = (key, index, last) => {
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20, Home: -Infinity, End: Infinity };
    return key in moves ? Math.min(last, Math.max(0, index + moves[key])) : null;
  };

  const listen = (chart) => {
    const point = (event) => chart.view && place(chart, indexUnder(chart, event));
    chart.plot.addEventListener("pointermove", point);
    chart.plot.addEventListener("pointerdown", point);
    chart.plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && document.activeElement !== chart.plot) place(chart, null); // a finger only lifts
    });
    chart.plot.addEventListener("focus", () => chart.view && chart.plot.matches(":focus-visible") && place(chart, chart.index ?? chart.view.panel.points - 1));
    chart.plot.addEventListener("blur", () => place(chart, null));
    chart.plot.addEventListener("keydown", (event) => {
      if (!chart.view || event.altKey || event.ctrlKey || event.metaKey) return;
      const last = chart.view.panel.points - 1;
      const next = event.key === "Escape" ? null : nextIndex(event.key, chart.index ?? last, last);
      if (next === null && event.key !== "Escape") return;
      event.preventDefault();
      place(chart, next);
    });
  };

  // --- the page ------------------------------------------------------------------------------------------------

  const charts = [...document.querySelectorAll(".chart")].map((element) => ({
    element,
    plot: element.querySelector(".plot"),
    readout: element.querySelector(".readout"),
    index: null,
    view: null,
  }));
  const redrawAll = () => charts.forEach(redraw);
  const armButtons = [...document.querySelectorAll("button.arm")];
  const axisButtons = [...document.querySelectorAll("button[data-axis]")];
  const everything = document.querySelector("button.everything");

  const update = () => {
    for (const button of armButtons) button.setAttribute("aria-pressed", !shown.hidden.has(+button.dataset.arm));
    for (const button of axisButtons) button.setAttribute("aria-pressed", button.dataset.axis === shown.axis);
    everything.disabled = shown.hidden.size === 0;
    redrawAll();
  };

  for (const button of armButtons) {
    button.addEventListener("click", () => {
      const arm = +button.dataset.arm;
      if (!shown.hidden.delete(arm)) shown.hidden.add(arm);
      update();
    });
  }
  for (const button of axisButtons) {
    button.addEventListener("click", () => {
      shown.axis = button.dataset.axis;
      charts.forEach((chart) => (chart.index = null));
      update();
    });
  }
  everything.addEventListener("click", () => {
    shown.hidden.clear();
    update();
    armButtons[0].focus(); // this button is disabled now
  });
  charts.forEach(listen);
  let widths = "";
  new ResizeObserver(() => {
    const now = charts.map((chart) => chart.plot.clientWidth).join();
    if (now !== widths) redrawAll();
    widths = now;
  }).observe(document.querySelector("main"));
  update();
})();
