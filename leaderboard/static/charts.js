// Draws the page's figures with Vega-Lite, in the page's own colours, and again when those change.
"use strict";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function config() {
  const [ink, soft, line] = ["--ink", "--soft", "--line"].map(colour);
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500 },
    legend: { labelColor: ink, titleColor: soft, labelFontSize: 12, titleFontSize: 12, labelLimit: 240 },
    title: { color: ink },
    header: { labelColor: ink, titleColor: soft },
    text: { color: ink, fill: ink },
    rule: { color: soft },
    view: { stroke: line },
    range: { category: ["--accent", "--s1", "--s2", "--s3", "--s4", "--soft"].map(colour) },
  };
}

const changed = new Map(); // by the id of a figure, what it draws in place of its own

let queue = Promise.resolve(); // two drawings of a figure at a time would leave both in it

function draw() {
  queue = queue.then(drawAll);
  return queue;
}

async function drawAll() {
  for (const figure of document.querySelectorAll("figure.vega")) {
    const { drawn, heads, lines, words } = changed.get(figure.id) ?? JSON.parse(figure.querySelector("script").textContent);
    const table = lines.map((line) => Object.fromEntries(heads.map((head, k) => [head, line[k]])));
    const place = figure.querySelector(".drawn");
    const label = words ?? place.getAttribute("aria-label");
    await vegaEmbed(place, { ...drawn, datasets: { table } }, { actions: false, renderer: "svg", config: config(), ast: true });
    place.setAttribute("role", "img"); // Vega has put words of its own there
    place.setAttribute("aria-label", label);
    declutter(place);
    figure.dataset.drawn = place.querySelectorAll("svg").length;
  }
}

// Moves a name that would lie on another to the other side of its point, and hides it where that is taken too.
function declutter(place) {
  const { top, bottom } = place.getBoundingClientRect();
  const kept = [];
  for (const name of place.querySelectorAll(".mark-text text")) {
    if (!name.textContent) continue;
    const box = name.getBoundingClientRect();
    const moved = (dy) => new DOMRect(box.x, box.y + dy, box.width, box.height);
    const other = (name.__data__.datum.beneath ? -1 : 1) * (box.height + 14);
    const free = (spot) => spot.top >= top && spot.bottom <= bottom
      && !kept.some((taken) => spot.left < taken.right && taken.left < spot.right && spot.top < taken.bottom && taken.top < spot.bottom);
    const dy = (name.closest(".role-mark") ? [0, other] : [0]).find((shift) => free(moved(shift)));
    name.style.visibility = dy === undefined ? "hidden" : "";
    if (dy) name.style.translate = `0 ${dy}px`;
    if (dy !== undefined) kept.push(moved(dy));
  }
}

// Which points no other surpasses: as high in both coordinates, higher in one.
function front(points) {
  const surpassing = points.map(() => false);
  const placed = points.map(([x, y], place) => ({ x, y, place })).filter(({ x, y }) => x !== null && y !== null);
  let best = { x: Infinity, y: -Infinity };
  for (const point of placed.sort((a, b) => b.x - a.x || b.y - a.y)) {
    surpassing[point.place] = point.y > best.y || (point.x === best.x && point.y === best.y);
    if (point.y > best.y) best = point;
  }
  return surpassing;
}

// Draws a board's charts with other columns of its table: `columns` by series, `words` of a column, `cells` of a row by its id.
function redraw(columns, words, cells) {
  for (const figure of document.querySelectorAll(".overview figure.vega")) {
    const { drawn, heads, lines } = JSON.parse(figure.querySelector("script").textContent);
    const place = (name) => heads.indexOf(name);
    const shown = Object.keys(columns).filter((series) => drawn.params.some(({ name }) => name === `${series}Title`));
    const across = lines.map((line) => (figure.id === "cost" ? -line[place("flops")] || null : line[place("clean")]));
    for (const series of shown) {
      lines.forEach((line) => {
        const numbers = columns[series] === undefined ? [null, null, null] : cells(line[place("row")])(columns[series]);
        ["", "_low", "_high"].forEach((end, k) => { if (place(series + end) >= 0) line[place(series + end)] = numbers[k]; });
      });
      drawn.params.find(({ name }) => name === `${series}Title`).value = columns[series] === undefined ? "–" : words(columns[series]);
    }
    const fronts = shown.map((series) => front(lines.map((line, k) => [across[k], line[place(series)] || null]))); // 0 is no feat
    const present = shown.filter((series) => columns[series] !== undefined);
    for (const { encoding } of drawn.layer) {
      for (const { legend } of [encoding.color, encoding.shape].filter((channel) => channel?.legend)) legend.values = present;
    }
    lines.forEach((line, k) => { line[place("front")] = shown.filter((_, n) => fronts[n][k]).join(" "); });
    const named = present.map((series) => words(columns[series])).join(" and ");
    changed.set(figure.id, { drawn, heads, lines, words: `${lines.length} models, by ${named}. The numbers are in the table.` });
  }
  return draw();
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
