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

async function draw() {
  for (const figure of document.querySelectorAll("figure.vega")) {
    const { drawn, heads, lines } = JSON.parse(figure.querySelector("script").textContent);
    const table = lines.map((line) => Object.fromEntries(heads.map((head, k) => [head, line[k]])));
    const place = figure.querySelector(".drawn");
    const words = place.getAttribute("aria-label");
    await vegaEmbed(place, { ...drawn, datasets: { table } }, { actions: false, renderer: "svg", config: config(), ast: true });
    place.setAttribute("role", "img"); // Vega has put words of its own there
    place.setAttribute("aria-label", words);
    figure.dataset.drawn = place.querySelectorAll("svg").length;
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
