"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg", GAP = 8, HEAD = 20;
const all = (what, of = document) => [...of.querySelectorAll(what)];
const drawing = () => document.querySelector("svg.drawing");
const folded = new Set(), pressed = new Set();
let words = [], choice = 0, paper = false;

const at = (e, which = choice) => e.dataset.at.split(",")[which].split(" ").map(Number);
const inside = g => [...g.children].filter(e => e.tagName === "g" && e.dataset.at);
const label = g => (g.querySelector("text") || g).textContent.replace(/^[\u25be\u25b8] /, "");
const path = g => {
  const names = [];
  for (let e = g; e.tagName === "g" && e.dataset.at; e = e.parentElement) names.push(label(e));
  return names.join("/");
};

// Puts a box and all in it where the layout has it, and what is below something folded further up. Returns its height.
function put(g, x, y, wasX, wasY) {
  const [relX, relY, across, high] = at(g);
  g.place = {x, y, wasY: wasY + relY, across};
  let now = high;
  const isFolded = !paper && folded.has(path(g));
  g.classList.toggle("folded", isFolded);
  const fold = [...g.children].find(e => e.classList.contains("fold"));
  if (fold) {
    fold.setAttribute("aria-expanded", String(!isFolded));
    fold.querySelector(".hit").setAttribute("width", across);
    fold.querySelector("text").textContent = (isFolded ? "\u25b8 " : "\u25be ") + label(fold);
    const end = fold.querySelector(".end");
    if (end) end.setAttribute("transform", `translate(${across} 0)`);
  }
  if (isFolded) now = HEAD;
  else now = high + putAll(inside(g), x, y, wasX + relX, wasY + relY);
  g.place.high = now;
  g.firstElementChild.tagName === "rect" && g.firstElementChild.setAttribute("height", now);
  g.firstElementChild.tagName === "rect" && g.firstElementChild.setAttribute("width", across);
  return now;
}
// How much less high the boxes of one box are now.
function putAll(boxes, x, y, wasX, wasY) {
  const done = [];
  let low = 0, lower = 0, moved = false;
  for (const g of boxes.slice().sort((a, b) => at(a)[1] - at(b)[1])) {
    const [relX, relY, across, high] = at(g);
    const above = done.filter(e => e.bottom <= relY && e.left < relX + across && relX < e.right);
    const top = moved && above.length
      ? Math.max(...above.map(e => e.now)) + Math.min(...above.map(e => relY - e.bottom)) : relY;
    const now = put(g, x + relX, y + top, wasX, wasY);
    moved = moved || now !== high;
    done.push({left: relX, right: relX + across, bottom: relY + high, now: top + now});
    g.setAttribute("transform", `translate(${relX} ${top})`);
    low = Math.max(low, relY + high);
    lower = Math.max(lower, top + now);
  }
  return lower - low;
}
function route(e) {
  const [x, y, gutter, host, toX] = at(e), card = document.getElementById(e.dataset.card);
  const slot = document.getElementById(e.dataset.slot).place;
  const shut = card.closest(".folded"), by = card.place.y - card.place.wasY;
  const start = shut ? [shut.place.x + shut.place.across, shut.place.y + HEAD / 2, shut.place.y + HEAD / 2]
    : [x, y + by, gutter + by];
  const middle = (host + toX) / 2, toY = slot.y + slot.high / 2;
  e.setAttribute("d", `M${start[0]} ${start[1]}V${start[2]}H${host}C${middle} ${start[2]} ${middle} ${toY} ${toX} ${toY}`);
}
function place() {
  const svg = drawing();
  if (!svg) return;
  document.documentElement.classList.add("scripted");
  const least = Number(svg.dataset.scale), room = svg.parentElement.clientWidth;
  const widths = svg.dataset.at.split(",").map((_, which) => at(svg, which)[0]);
  const fitting = widths.map((w, which) => [w, which]).filter(([w]) => w * least <= room);
  choice = paper ? 0 : fitting.length ? fitting.sort((a, b) => b[0] - a[0] || a[1] - b[1])[0][1]
    : widths.indexOf(Math.min(...widths));
  const [across, whole] = at(svg);
  const high = whole + putAll(inside(svg), 0, 0, 0, 0);
  // Larger if the window has room, smaller only if it is narrower than the layout.
  const below = innerHeight - svg.getBoundingClientRect().top - scrollY - 16;
  const scale = Math.min(room / (across + 2), Math.max(least, Math.min(1.7, below / (whole + 2))));
  svg.setAttribute("viewBox", `-1 -1 ${across + 2} ${high + 2}`);
  svg.setAttribute("width", (across + 2) * scale);
  svg.setAttribute("height", (high + 2) * scale);
  all("path.route", svg).forEach(route);
  all("g.finding", svg).forEach(shorten);
}
// As much of a finding as there is room for.
function shorten(g) {
  const text = g.querySelector("text"), code = text.querySelector("tspan").textContent;
  const letters = Math.floor((at(g)[2] - 20) / 6.65), whole = g.getAttribute("aria-label");
  text.lastChild.data = (whole.length > letters ? whole.slice(0, letters - 1) + "\u2026" : whole).slice(code.length);
}
function fold(g) {
  const name = path(g);
  if (!folded.delete(name)) folded.add(name);
  place();
}

const text = g => (g.getAttribute("aria-label") || "").toLowerCase();
function filter() {
  const cards = all("g.card", drawing());
  let hits = 0;
  for (const card of cards) {
    const states = !pressed.size || [...pressed].some(s => card.classList.contains(s) || card.querySelector("path." + s));
    const hit = states && words.every(word => text(card).includes(word));
    card.classList.toggle("dim", !hit);
    hits += hit;
  }
  const active = pressed.size || words.length;
  document.getElementById("hits").textContent = active ? `${hits} of ${cards.length} cards` : "";
}
function light(e) {
  all(".lit").forEach(each => each.classList.remove("lit"));
  const box = document.getElementById("details"), g = e && e.closest && e.closest("g.card,g.finding,g.slot");
  box.hidden = !g;
  if (!g) return;
  box.textContent = g.getAttribute("aria-label");
  const groups = (g.dataset.groups || "").split(" ").filter(Boolean);
  const named = (g.dataset.cards || "").split(" ").filter(Boolean);
  for (const card of all("g.card", drawing()))
    if (named.includes(card.id) || (card.dataset.groups || "").split(" ").some(each => groups.includes(each)))
      card.classList.add("lit");
  for (const line of all("path.route"))
    if (line.dataset.card === g.id || line.dataset.slot === g.id) {
      line.classList.add("lit");
      document.getElementById(line.dataset.card).classList.add("lit");
    }
  const rect = g.getBoundingClientRect();
  box.style.bottom = rect.bottom > innerHeight * .6 ? "auto" : "1rem";
  box.style.top = rect.bottom > innerHeight * .6 ? "1rem" : "auto";
}
// The next card in a direction: the nearest, what is aside counting twice.
function next(card, dx, dy) {
  const from = card.getBoundingClientRect();
  let best = null, least = Infinity;
  for (const other of all("g.card", drawing())) {
    const to = other.getBoundingClientRect();
    const along = dx * (to.x - from.x) + dy * (to.y - from.y), aside = Math.abs(dy * (to.x - from.x)) + Math.abs(dx * (to.y - from.y));
    if (to.width && along > 1 && along + 2 * aside < least) [best, least] = [other, along + 2 * aside];
  }
  return best;
}
function start() {
  const svg = drawing();
  if (!svg) return;
  // What is said of a card is in the page's own box: two would cover each other.
  for (const title of all("g>title", svg)) {
    title.parentElement.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  for (const key of all(".key")) key.setAttribute("aria-pressed", String(pressed.has(key.dataset.state)));
  document.getElementById("filter").value = words.join(" ");
  place();
  filter();
}
document.addEventListener("click", event => {
  const g = event.target.closest(".fold"), key = event.target.closest(".key");
  if (g) fold(g.parentElement);
  if (key) {
    const state = key.dataset.state;
    if (!pressed.delete(state)) pressed.add(state);
    key.setAttribute("aria-pressed", String(pressed.has(state)));
    filter();
  }
});
document.addEventListener("input", event => {
  if (event.target.id !== "filter") return;
  words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  filter();
});
document.addEventListener("mouseover", event => light(event.target));
document.addEventListener("focusin", event => light(event.target));
document.addEventListener("focusout", () => light(null));
document.addEventListener("keydown", event => {
  const on = document.activeElement, card = on && on.closest("g.card");
  const way = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
  if (event.key === "/" && on.tagName !== "INPUT") {
    event.preventDefault();
    document.getElementById("filter").focus();
  } else if ((event.key === "Enter" || event.key === " ") && on.classList.contains("fold")) {
    event.preventDefault();
    fold(on.parentElement);
  } else if (event.key === "Escape") {
    words = [];
    pressed.clear();
    start();
    light(null);
  } else if (card && way) {
    const other = next(card, ...way);
    if (other) {
      event.preventDefault();
      other.focus();
    }
  }
});
addEventListener("resize", place);
addEventListener("beforeprint", () => { paper = true; place(); });
addEventListener("afterprint", () => { paper = false; place(); });
window.drawingChanged = start;
start();
})();
