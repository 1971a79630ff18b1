"use strict";
// What both pages share. A page has elements with the ids data, theme and tip, and calls listen() when it is drawn.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent), unit = data.unit;
const NONE = "–";
const STATUS_WORDS = { beyond: "beyond", unproven: "unproven", within: "within", tiny: "too small" };

// ---- elements: all text goes in as text ----
function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const isolated = (name) => make("bdi", {}, name);
const clip = (text, longest) => { const letters = [...text]; return letters.length <= longest ? text : letters.slice(0, longest - 1).join("") + "…"; };
const capital = (word) => word[0].toUpperCase() + word.slice(1);
const verdictWord = (verdict) => make("b", { class: verdict + "-ink" }, capital(verdict) + ": ");

// ---- numbers: differences and levels in the unit of the data ----
function decimal(value, digits) {
  if (value === null || value === undefined) return NONE;
  const text = Math.abs(value).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return value < 0 && /[1-9]/.test(text) ? "−" + text : text;
}
const number = (value, digits = unit.digits) => value === null || value === undefined ? NONE : decimal(value * unit.scale, digits);
const span = (low, high) => number(low) + " to " + number(high);
const integer = (value) => value === null || value === undefined ? NONE : value.toLocaleString("en-US");
const percent = (fraction) => +(fraction * 100).toPrecision(6) + " %";
const present = (values) => values.filter((value) => value !== null && value !== undefined);

// ---- marks and legends ----
const shape = (path, attributes = {}) => draw("path", { d: path, class: "dot", ...attributes });
const marked = (kind, path) => draw("svg", { class: "mark " + kind, width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, shape(path));
const icon = (verdict, kind = "") => draw("svg", { class: verdict + "-ink " + kind, "aria-hidden": "true" }, draw("use", { href: "#icon-" + verdict }));
const sample = (...shapes) => draw("svg", { width: 30, height: 16, "aria-hidden": "true" }, ...shapes);
const toleranceSample = () => sample(draw("line", { x1: 15, x2: 15, y1: 0, y2: 16, class: "tolerance" }));
const legendItems = (...items) => items.map(([picture, ...text]) => make("li", {}, picture, make("span", {}, ...text)));

// ---- scales, and the frame of a plot with one row per group ----
function ticks(low, high, about) {
  const raw = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return { step, values: Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step) };
}
const tickDigits = (step) => Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
const tickText = (value, step) => number(value, tickDigits(step * unit.scale));
// The ticks below, and above them the lines that have a label; x gives percent of the width.
function plotAxis({ step, values }, lines, x, heading) {
  const picture = draw("svg", { "aria-hidden": "true" }, ...values.map((value) => draw("text", { x: x(value), y: 40, "text-anchor": "middle", "font-size": 12 }, tickText(value, step))));
  for (const { value, label } of lines.filter((line) => line.label)) {
    const share = parseFloat(x(value)) / 100;
    picture.append(draw("text", { x: x(value), y: 17, "text-anchor": share > 0.8 ? "end" : share < 0.15 ? "start" : "middle", "font-size": 12, "font-weight": 600 }, label));
  }
  return make("div", { class: "axis" }, make("span", {}, "Group"), picture, make("span", {}, heading));
}
function plotBack({ values }, lines, x, ...behind) {
  const vertical = (value, kind) => draw("line", { x1: x(value), x2: x(value), y1: "0", y2: "100%", class: kind });
  return make("div", { class: "back" }, draw("svg", { "aria-hidden": "true" }, ...behind, ...values.map((value) => vertical(value, "grid")), ...lines.map((line) => vertical(line.value, line.kind))));
}

// ---- numbers to take away ----
// A spreadsheet runs text that begins like a formula; an apostrophe before it keeps it text.
const csvText = (text) => '"' + (/^[=+\-@\t\r]/.test(text) ? "'" + text : text).replaceAll('"', '""') + '"';
const csvLines = (head, lines) => [head, ...lines.map((line) => line.map((value) => typeof value === "string" ? csvText(value) : value ?? "").join(","))].join("\r\n") + "\r\n";
function download(name, text) {
  const address = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// ---- tooltip: an element that has something to tell has a function tip, and tipOff if it must tidy up ----
let tipped = null;
function pointTip(event) {
  const target = event.target.closest?.(".row, .point, .chart") ?? null, told = target?.tip?.(event) ?? null, tip = $("tip");
  if (tipped !== target) { tipped?.tipOff?.(); tipped = target; }
  tip.hidden = told === null;
  if (tip.hidden) return;
  tip.replaceChildren(make("b", {}, isolated(clip(told[0], 200))), ...told.slice(1).map((text) => make("div", { class: "num", dir: "auto" }, text)));
  const right = event.clientX + 16 + tip.offsetWidth < innerWidth, below = event.clientY + 16 + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(4, right ? event.clientX + 16 : event.clientX - tip.offsetWidth - 12) + "px";
  tip.style.top = Math.max(4, below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 12) + "px";
}

// ---- what the reader does to the whole page: colours, printing, pointing, another width ----
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", "Switch to " + (theme === "dark" ? "light" : "dark") + " colours");
}
function listen(redraw) {
  setTheme(document.documentElement.dataset.theme);
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  let theme, width = innerWidth;
  addEventListener("beforeprint", () => { theme = document.documentElement.dataset.theme; setTheme("light"); });
  addEventListener("afterprint", () => setTheme(theme));
  addEventListener("pointermove", pointTip); addEventListener("pointerdown", pointTip); addEventListener("scroll", () => { $("tip").hidden = true; }, true);
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
}
