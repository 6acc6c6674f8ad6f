// Two to five rows side by side; which ones, the address's fragment says: #<row>,<row>&number=<number>.
"use strict";
// In a block, since Vega's script has many global names of one or two letters.
{
  const known = JSON.parse(document.getElementById("known").textContent);
  const titles = new Map(known.rows.map(([row, title]) => [row, title]));
  const LONGEST = 60; // characters of a title in lists and charts
  const MOST = 200; // images listed of a group
  // Isolated, so that marks of direction in one title turn no other text.
  const shortTitle = (row) => {
    const letters = [...titles.get(row)];
    return `\u2068${letters.slice(0, LONGEST).join("")}${letters.length > LONGEST ? "…" : ""}\u2069`;
  };
  const page = (row) => `../models/${encodeURIComponent(row)}/index.html`;
  const percent = (share) => (100 * share).toFixed(1);
  const chance = (p) => (p >= 0.001 ? p.toFixed(3) : p < 0.0001 ? p.toExponential(1) : p.toPrecision(2));

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const link = (row) => element("a", { href: page(row) }, shortTitle(row));

  function tableOf(label, heads, lines, className = "") {
    const head = element("tr", {}, ...heads.map((h, i) => element("th", { scope: "col", class: i ? "number" : "" }, h)));
    const body = lines.map(([first, ...cells]) =>
      element("tr", {}, element("th", { scope: "row" }, first), ...cells.map((c, i) => element("td", { class: "number", "data-of": heads[i + 1].textContent ?? heads[i + 1] }, ...[c].flat()))));
    const table = element("table", { class: className }, element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text; // a stray percent sign
    }
  }

  function state() {
    const [first, ...rest] = location.hash.slice(1).split("&").map(decoded);
    const asked = document.getElementById(first) ? [] : [...new Set(first.split(",").filter(Boolean))];
    const options = new Map(rest.map((part) => part.split("=", 2)));
    const number = known.paired.includes(options.get("number")) ? options.get("number") : known.ranking;
    const image = /^\d+$/.test(options.get("image") ?? "") ? Number(options.get("image")) : null;
    return { rows: asked.filter((row) => titles.has(row)).slice(0, 5), unknown: asked.filter((row) => !titles.has(row)), number, image };
  }

  function address(rows, number, image = null) {
    const option = number === known.ranking ? "" : `&number=${encodeURIComponent(number)}`;
    return `#${rows.map(encodeURIComponent).join(",")}${option}${image === null ? "" : `&image=${image}`}`;
  }

  function go(rows, number, image = null) {
    const wanted = address(rows, number, image);
    if (wanted !== location.hash) location.hash = wanted;
  }

  function load(row) {
    if (RVB.rows.has(row)) return Promise.resolve();
    return new Promise((done, failed) => {
      const script = element("script", { src: `../models/${encodeURIComponent(row)}/images.js` });
      script.addEventListener("load", done);
      script.addEventListener("error", () => failed(new Error(`models/${row}/images.js is missing`)));
      document.head.append(script);
    });
  }

  // A number's name as the board writes it.
  const label = (name) => known.labels[name];

  function headlines(rows, number) {
    const cell = (row, name) => {
      const { numbers, seeds, ranks } = RVB.rows.get(row);
      if (!numbers[name]) return "–";
      if (known.beyond.includes(name)) return "out of reach of the noise";
      const [value, low, high] = numbers[name];
      const parts = [element("b", {}, percent(value)), element("small", {}, `${percent(low)}–${percent(high)}${ranks[name] ? `, rank ${[...new Set(ranks[name])].join("–")}` : ""}`)];
      if (seeds[name]) {
        const [mean, least, most] = seeds[name].map(percent);
        parts.push(element("small", {}, `seeds ${mean}, ${least}–${most}`));
      }
      return parts;
    };
    const of = (row) => RVB.rows.get(row);
    const names = known.numbers.filter((name) => rows.some((row) => of(row).numbers[name]));
    const lines = names.map((name) => [label(name), ...rows.map((row) => cell(row, name))]);
    lines.push(["trust", ...rows.map((row) => of(row).trust)], ...["parameters", "FLOPs"].map((name) => [name, ...rows.map((row) => of(row)[name.toLowerCase()].toLocaleString("en"))]));
    return [
      element("h2", {}, "Their numbers"),
      tableOf("headline numbers", ["percent, 95% interval, rank", ...rows.map(link)], lines, "headlines"),
      element("p", { id: "settled" }, settled(rows, number)),
    ];
  }

  // 1 where the board shows the first to be better, -1 the second, 0 neither; null where that is not known here,
  // undefined where one has no rank.
  function order(row, other, number) {
    const [a, b] = [row, other].map((id) => RVB.rows.get(id).ranks[number]);
    if (!a || !b) return undefined;
    const [first, second] = [verdicts(row, number), verdicts(other, number)];
    if (!first || !second) return a[1] < b[0] ? 1 : b[1] < a[0] ? -1 : null;
    const { first: wins, second: losses } = RVB.agreement(first, second);
    return RVB.mcnemar(wins, losses) > known.errors[number] || bySeeds(row, other, number) ? 0 : Math.sign(wins - losses);
  }

  // Whether the images would order two rows, and trainings with other seeds leave that open.
  const bySeeds = (row, other, number) => known.seeds[number].some((pair) => pair === `${row},${other}` || pair === `${other},${row}`);

  // Why the board does not order two rows.
  function why(row, other, number) {
    if (bySeeds(row, other, number)) return " (the images would order them, trainings with other seeds do not)";
    const { first, second } = RVB.agreement(verdicts(row, number), verdicts(other, number));
    return ` (p is ${chance(RVB.mcnemar(first, second))}, an order needs at most ${chance(known.errors[number])})`;
  }

  function settled(rows, number) {
    const pairs = { 1: [], 0: [], null: [], undefined: [] };
    for (const [i, row] of rows.entries()) {
      for (const other of rows.slice(i + 1)) {
        const sign = order(row, other, number);
        if (sign > 0) pairs[1].push(`${shortTitle(row)} before ${shortTitle(other)}`);
        else if (sign < 0) pairs[1].push(`${shortTitle(other)} before ${shortTitle(row)}`);
        else pairs[sign].push(`${shortTitle(row)} and ${shortTitle(other)}${sign === 0 ? why(row, other, number) : ""}`);
      }
    }
    const sentences = [];
    if (pairs[1].length) sentences.push(`Settled by ${label(number)}: ${pairs[1].join("; ")}.`);
    if (pairs[0].length) sentences.push(`Not settled by ${label(number)}: ${pairs[0].join("; ")}.`);
    if (pairs[null].length) sentences.push(`Their ranks by ${label(number)} overlap: ${pairs[null].join("; ")}.`);
    if (pairs[undefined].length) sentences.push(`No rank by ${label(number)}: ${pairs[undefined].join("; ")}.`);
    return sentences.join(" ");
  }

  function overlay(rows) {
    const labels = { attacked: "robust, at most", certified: "certified", smoothed: "smoothed version, certified" };
    const lines = [];
    // Curves of one kind: where a row has no measured distances, steps at the balls that were attacked, for every row.
    const bare = rows.filter((row) => !RVB.rows.get(row).distances);
    const mixed = bare.length > 0 && bare.length < rows.length;
    const curvesOf = (row) => {
      const { curves, balls } = RVB.rows.get(row);
      if (!mixed || bare.includes(row)) return curves;
      const { attacked, ...proven } = curves;
      return balls && attacked ? { attacked: balls, ...proven } : proven;
    };
    for (const [i, row] of rows.entries()) {
      const curves = curvesOf(row);
      const name = `${i + 1}. ${shortTitle(row)}`;
      for (const [kind, shares] of Object.entries(curves)) {
        shares.forEach((share, k) => lines.push({ row: name, kind: labels[kind], radius: known.radii[k], accuracy: 100 * share, attack: kind === "attacked" && known.attacked.includes(known.radii[k]) }));
      }
      for (const [k, share] of ((curves.attacked && curves.certified) ?? []).entries()) {
        lines.push({ row: name, kind: "gap", radius: known.radii[k], accuracy: 100 * curves.attacked[k], certified: 100 * (curves.certified[k + 1] ?? share) });
      }
    }
    if (!lines.length) return [];
    const words = `Accuracy over the l2 radius of ${rows.map(shortTitle).join(", ")}. The numbers are in the table above and in the file below.`;
    const drawn = element("div", { class: "drawn", role: "img", "aria-label": words });
    const has = (kind) => lines.some((line) => line.kind === kind);
    const needed = ({ mark }) => (mark.type === "area" ? has("gap") : mark.type === "point" ? lines.some(({ attack }) => attack)
      : mark.interpolate === "step-after" ? has(labels.attacked) : has(labels.certified) || has(labels.smoothed));
    const spec = { ...known.overlay, layer: known.overlay.layer.filter(needed), datasets: { table: lines } }; // Vega warns of one without records
    const csv = ["row,kind,radius,accuracy", ...rows.flatMap((row) => Object.entries(curvesOf(row)).flatMap(([kind, shares]) => shares.map((share, k) => `${row},${kind},${known.radii[k]},${share}`)))].join("\n");
    const file = URL.createObjectURL(new Blob([csv + "\n"], { type: "text/csv" }));
    const caption = element("figcaption", {}, "Accuracy over the l2 radius. The true robust accuracy is at most robust (solid) and at least certified (dashed). Dots: radii at which attacks were run. The smoothed version (dotted) is another classifier. ",
      bare.length ? `Distances of adversarial images are not kept for ${bare.map(shortTitle).join(", ")}: the robust curve of ${mixed ? "every model" : bare.length > 1 ? "each" : "this model"} falls only where an attacked ball ends (an Linf ball at its corner). Below, no attack was run. ` : "", element("a", { href: file, download: "sandwich.csv" }, "sandwich.csv"));
    vegaEmbed(drawn, spec, { actions: false, renderer: "svg", config: config(), ast: true }).then(() => {
      drawn.setAttribute("role", "img"); // Vega has put words of its own there
      drawn.setAttribute("aria-label", words);
    });
    return [element("h2", {}, "The sandwich"), element("figure", { class: "overlay" }, drawn, caption)];
  }

  function verdicts(row, number) {
    const { images, numbers } = RVB.rows.get(row);
    return images[number] ? RVB.bits(images[number], numbers[number][4]) : null; // of so many images
  }

  function pairLine(first, second, words, number) {
    const [a, b] = [verdicts(first, number), verdicts(second, number)];
    if (!a || !b) return [words, "–", "–", "–", "–", "–", "–", "–"];
    const { both, first: wins, second: losses, neither } = RVB.agreement(a, b);
    const sign = order(first, second, number);
    const verdict = sign === undefined ? "no rank" : sign === null ? "ranks overlap" : sign > 0 ? "first better" : sign < 0 ? "second better"
      : bySeeds(first, second, number) ? "not settled: seeds" : "not settled";
    return [words, both, wins, losses, neither, chance(RVB.mcnemar(wins, losses)), chance(known.errors[number]), verdict].map((cell) => (cell instanceof Node ? cell : `${cell}`));
  }

  function agreements(rows, number) {
    const heads = (first, second) => ["both correct", first, second, "neither", "p (McNemar, exact)", "p needed", "on the board"];
    const choice = element("select", { id: "number", autocomplete: "off" }, ...known.paired.map((name) => element("option", { value: name }, label(name))));
    choice.value = number;
    choice.addEventListener("change", () => go(state().rows, choice.value));
    const shown = [element("h2", { id: "images" }, "Image by image"), element("p", {}, element("label", { for: "number" }, "Correct by "), choice)];
    if (rows.length === 2) {
      const lines = known.paired.filter((name) => rows.every((row) => verdicts(row, name))).map((name) => pairLine(...rows, label(name), name));
      shown.push(tableOf("agreement of the two", ["number", ...heads("only the first", "only the second")], lines, "agreement stacked"));
    } else {
      const lines = rows.flatMap((row, i) => rows.slice(i + 1).map((other) => pairLine(row, other, element("span", {}, link(row), " – ", link(other)), number)));
      shown.push(tableOf("agreement of each pair", [`pair: ${label(number)}`, ...heads("only the first", "only the second")], lines, "agreement stacked"));
    }
    shown.push(element("p", {}, element("small", {}, "p: the probability of so uneven a split of the images on which the two differ, or a more uneven one, if they were equally good. It is about these networks on other images, not about other trainings, and about one pair alone. The board orders two models if p is at most “p needed” (5% divided by all pairs of models that have the number) and, where both have a study over seeds, trainings agree.")));
    return [...shown, ...separating(rows, number)];
  }

  function separating(rows, number) {
    const correct = rows.map((row) => verdicts(row, number));
    if (correct.some((verdict) => !verdict)) return [element("p", {}, `${label(number)} is not known image by image for all of them.`)];
    const groups = new Map();
    for (let i = 0; i < correct[0].length; i++) {
      const right = rows.filter((_, k) => correct[k][i]);
      if (right.length === 0 || right.length === rows.length) continue;
      const key = right.join(",");
      if (!groups.has(key)) groups.set(key, { right, images: [] });
      groups.get(key).images.push(i);
    }
    const shown = [element("h3", {}, `Images that tell them apart: ${label(number)}`)];
    if (!groups.size) shown.push(element("p", {}, "None: they are correct on the same images."));
    for (const { right, images } of [...groups.values()].sort((a, b) => b.images.length - a.images.length)) {
      const count = `${images.length} image${images.length === 1 ? "" : "s"}`;
      const names = right.flatMap((row, i) => (i ? [", ", link(row)] : [link(row)]));
      const listed = images.slice(0, MOST).map((image) => element("li", {}, element("a", { href: address(rows, number, image) }, ...tile(known.sprite, "", image, 40), `${image}`)));
      const list = element("ul", { class: "apart", "data-right": right.join(",") }, ...listed);
      shown.push(element("p", {}, "Only ", ...names, `: ${count}${images.length > MOST ? `, the first ${MOST}` : ""}`), list);
    }
    return [...shown, ...opened(rows, number)];
  }

  // An image of a picture that holds many, drawn `side` pixels wide; nothing where there is none.
  function tile(all, folder, image, side) {
    if (!all || image >= all.n) return [];
    const drawn = element("span", { class: "picture", "aria-hidden": "true" });
    drawn.style.cssText = `width: ${side}px; height: ${side}px; background-size: ${side * all.across}px ${side * all.lines}px`;
    drawn.style.backgroundImage = `url("${folder}${all.file}")`;
    drawn.style.backgroundPosition = `-${side * (image % all.across)}px -${side * Math.floor(image / all.across)}px`;
    return [drawn];
  }

  // What is known of one image: clean, attacked, and every verdict of each model on it.
  function opened(rows, number) {
    const { image } = state();
    const of = (row) => RVB.rows.get(row);
    const n = Math.max(...rows.map((row) => of(row).numbers.clean[4]));
    const box = element("input", { type: "number", id: "which", min: "0", max: `${n - 1}`, value: `${image ?? ""}`, autocomplete: "off" });
    box.addEventListener("change", () => { if (box.value !== "") go(rows, number, Math.min(n - 1, Math.max(0, Math.trunc(Number(box.value))))); });
    const asked = element("p", {}, element("label", { for: "which" }, `Open image (0 to ${n - 1}) `), box);
    const head = element("h3", { id: "image", tabindex: "-1" }, image === null ? "One image" : `Image ${image}`);
    if (image === null || image >= n) return [head, asked];
    const word = (row, name) => { const right = verdicts(row, name); return right && image < right.length ? (right[image] ? "yes" : "no") : "–"; };
    const at = (values) => (values && image < values.length ? values[image] : undefined);
    const far = (value) => (value === undefined ? "–" : value === null ? "not broken" : value.toFixed(4));
    const names = known.paired.filter((name) => rows.some((row) => word(row, name) !== "–"));
    const lines = names.map((name) => [label(name), ...rows.map((row) => word(row, name))]);
    lines.push(["certified to, l2", ...rows.map((row) => far(at(of(row).certified)))], ["broken from, l2", ...rows.map((row) => far(at(of(row).broken)) + (at(of(row).broken) && !of(row).distances ? " (the attacked ball)" : ""))]);
    const clean = tile(known.sprite, "", image, 120);
    const attacked = rows.flatMap((row) => tile(of(row).sprite, `../models/${encodeURIComponent(row)}/`, image, 120).map((drawn) => element("figure", {}, drawn, element("figcaption", {}, `${of(row).sprite.name}, ${shortTitle(row)}`))));
    const missing = rows.filter((row) => !(of(row).sprite && image < of(row).sprite.n));
    const absent = missing.map((row) => element("p", {}, `${shortTitle(row)}: no attacked image, `, of(row).sprite ? "since this image was not attacked." : "since git keeps none; ", ...(of(row).sprite ? [] : [element("code", {}, `rvb repro ${row}`), " makes them."])));
    const pictures = clean.length ? [element("div", { class: "opened" }, element("figure", {}, ...clean, element("figcaption", {}, "clean")), ...attacked), ...absent]
      : [element("p", {}, "No picture: the images are not in git, and no model of this board is built here. Build one with ", element("code", {}, `rvb repro ${rows[0]}`), ", then run ", element("code", {}, "rvb site"), ".")];
    return [head, asked, ...pictures, tableOf(`image ${image}, number by number`, ["correct by", ...rows.map(link)], lines, "agreement stacked")];
  }

  function fillChoices(rows) {
    const filter = document.getElementById("filter").value.trim().toLowerCase();
    for (let i = 0; i < 5; i++) {
      const choice = document.getElementById(`row-${i + 1}`);
      const fits = ([row, title]) => row === rows[i] || (!rows.includes(row) && `${row} ${title}`.toLowerCase().includes(filter));
      const options = known.rows.filter(fits).map(([row, , rank]) => element("option", { value: row }, `${rank}. ${shortTitle(row)} (${row})`));
      choice.replaceChildren(element("option", { value: "" }, i < 2 ? "choose a model" : "none"), ...options);
      choice.value = rows[i] ?? "";
    }
    const hits = known.rows.filter(([row, title]) => `${row} ${title}`.toLowerCase().includes(filter)).length;
    document.getElementById("hits").textContent = !filter ? "" : hits ? `${hits} of ${known.rows.length} models` : "No model has this in its name";
  }

  async function show() {
    const { rows, unknown, number, image } = state();
    fillChoices(rows);
    const status = document.getElementById("said");
    const place = document.getElementById("compared");
    const missing = unknown.length ? `Not on this board: ${unknown.map((row) => row.slice(0, LONGEST)).join(", ")}. ` : "";
    if (rows.length < 2) {
      place.replaceChildren();
      status.textContent = `${missing}Choose two to five models.`;
      return;
    }
    try {
      await Promise.all(rows.map(load));
    } catch (error) {
      status.textContent = `${error.message}; build the site again.`;
      return;
    }
    if (state().rows.join() !== rows.join()) return; // chosen anew meanwhile
    const focused = document.activeElement?.id;
    const beside = element("div", { class: "beside" }, element("div", {}, ...headlines(rows, number)), element("div", {}, ...overlay(rows)));
    place.replaceChildren(beside, ...agreements(rows, number));
    if (image !== null) {
      const head = document.getElementById("image");
      head?.scrollIntoView({ block: "start" });
      (focused === "which" ? document.getElementById(focused) : head)?.focus({ preventScroll: true });
    } else if (focused) document.getElementById(focused)?.focus();
    status.textContent = `${missing}${rows.length} models compared.`;
    document.title = `${rows.map(shortTitle).join(" – ")} – robust-vit-bench`;
  }

  function start() {
    const form = document.getElementById("choose");
    if (!form) return;
    form.hidden = false;
    form.querySelector(".filter").hidden = known.rows.length <= 20;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => {
      if (event.target.tagName !== "SELECT") return;
      const rows = [...form.querySelectorAll("select")].map((choice) => choice.value).filter(Boolean);
      go(rows, state().number);
    });
    document.getElementById("filter").addEventListener("input", () => fillChoices(state().rows));
    addEventListener("hashchange", show);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
  }

  start();
}
