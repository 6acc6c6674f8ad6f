// Sorts, filters and remembers: what is chosen stands in the address, after the #. Without this script the table is whole and sorted.
"use strict";
addEventListener("DOMContentLoaded", () => { // after times.js
  const table = document.querySelector("table.board");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const [find, sort, all, far] = ["find", "sort", "all", "far"].map((id) => document.getElementById(id));
  const slide = typeof RADII === "undefined" ? null : document.getElementById("radius");
  const CHOICES = ["paper", "norm", "architecture", "trained", "certificate", "trust", "parameters", "flops", "budget"];
  const boxes = Object.fromEntries(CHOICES.map((name) => [name, document.getElementById(name === "trust" ? "tier" : name)]));
  const views = [...document.querySelectorAll("input[name=view]")];
  const bar = document.querySelector(".compare");
  const more = document.getElementById("more");
  const layout = document.querySelector(".layout");
  const MOST = 5; // rows that can be compared
  const FIRST = 30; // rows that are laid out at once, before more are asked for
  const { names, kinds } = numbers;
  const anywhere = 2 + names.length; // the first column of numbers at any radius
  const trust = anywhere + kinds.length;
  const order = new Intl.Collator("en");
  let chosen = []; // rows to compare, in the order in which they were chosen
  let column = 0;
  let down = false;
  let sorted = []; // what is known of the rows, in their order
  let whole = false;
  let drawn = "0"; // the view that the charts show
  let view = "0"; // a place in numbers.views, or "radius"
  let led = true; // the column that sorts is the first of its view, not one that was chosen

  // A row's number in a column of the page; null where it has none.
  const times = typeof TIMES === "undefined" ? {} : TIMES;
  const facts = rows.map((row, place) => {
    const own = numbers.rows[place];
    const id = row.dataset.row;
    const submission = id.split("-")[0];
    const seconds = times[id] || {};
    const norms = new Set();
    names.forEach((name, k) => {
      const [kind, of] = name.split(" ");
      if ((own[k] ?? null) !== null && of && kind !== "clean") norms.add(`${kind} in ${of}`);
    });
    const text = (row.cells[1].textContent + " " + numbers.papers[submission]).toLowerCase();
    const [architecture, trained, certificate] = numbers.traits[place].map((value, k) => numbers.known[k][value]);
    const [parameters, flops] = own.slice(names.length);
    const tier = row.querySelector(".tier")?.textContent ?? "rebuilt"; // exceptions alone are marked
    const keys = [place, row.cells[1].textContent.trim(), ...own.slice(0, names.length), ...kinds.map(() => null), row.cells[trust].textContent.trim(),
      parameters, flops, seconds.training ?? null, seconds.evaluation ?? null];
    const [rank, tip] = [row.cells[0].firstElementChild, row.querySelector("[role=tooltip]")];
    const ranked = [rank.textContent, tip?.textContent]; // by the number that ranks
    const traits = { paper: submission, architecture, trained, certificate, trust: tier };
    const costs = { parameters, flops };
    const budgets = seconds.budgets || [];
    return { row, id, place, text, norms, traits, costs, budgets, keys, rank, tip, ranked };
  });
  const worded = (k) => k === 1 || k === trust;
  const first = (k) => k >= 2 && k < trust; // the highest first: shares of images

  // The place of a column among the numbers, -1 of one that is none.
  const number = (k) => (k >= 2 && k < anywhere ? k - 2 : -1);
  const atRadius = (k) => k >= anywhere && k < trust;
  const words = (k) => sort.options[k].text;
  const radius = () => RADII.radii[Number(slide.value)];

  // The column of the track's own number of a kind at the chosen radius, which every model has been tested at; -1 for none.
  const tested = (k) => {
    if (kinds[k - anywhere] === "robust" && radius() === 0) return 2; // clean accuracy
    const at = names.findIndex((name) => name.startsWith(`${kinds[k - anywhere]} L2 `) && Math.abs(Number(name.split(" ")[2]) / radius() - 1) < 1e-5);
    return at < 0 ? -1 : at + 2;
  };
  // How a number bounds the true one where no attack was run, or where sampling stopped at the track's own radii.
  const BOUNDS = { robust: ["at most", "≤", "no attack was run"], smoothed: ["at least", "≥", "sampling may have stopped before this radius"] };
  const bound = (k) => (tested(k) < 0 ? BOUNDS[kinds[k - anywhere]] : undefined);

  // Writes the ranks of rows that are shown: by the number that sorts, or by the one that ranks where none does. At a radius
  // at which nothing was tested, certified numbers have an order, and bounds on robust ones have none.
  function rank(shown) {
    const any = atRadius(column);
    const by = number(any ? tested(column) : column);
    const ranked = numbers.ranks.some((row) => row[by]);
    const untested = any && by < 0;
    const placed = untested && !bound(column) ? places() : null;
    const title = untested || ranked ? words(column) : shortName(numbers.ranking);
    const told = !untested ? `The ranks that the tests leave it by ${title}: McNemar's exact test over the images, with seeds where they are known.`
      : placed ? `The order of ${title}, which is exact at any radius; it is not tested.` : `No rank: ${bound(column)[2]}, so the number is a bound.`;
    for (const { place, rank, tip, ranked: first, keys } of shown) {
      rank.textContent = untested ? placed?.get(keys[column]) ?? "–" : !ranked ? first[0] : (numbers.ranks[place][by] || "–").replace("-", "–");
      if (tip) tip.textContent = untested || (ranked && names[by] !== numbers.ranking) ? told : first[1];
    }
    const [heading, small] = [heads[0].querySelector("button").firstChild, heads[0].querySelector("small")];
    heading.textContent = placed ? "order" : "rank";
    table.classList.toggle("ordered", placed !== null);
    small.textContent = untested && !placed ? "none: a bound" : `by ${title}`;
  }

  const beyond = (k) => kinds[k - anywhere] === "smoothed" && radius() > numbers.reach; // no noise certifies this radius
  const limit = (k) => (bound(k) && !beyond(k) ? `, ${bound(k)[0]}` : "");

  // A number's name as its column writes it.
  const shortName = (name) => words(2 + names.indexOf(name));

  // By share, the places that its size alone leaves among all rows.
  function places() {
    const shares = facts.map(({ keys }) => keys[column]).filter((value) => value !== null).sort((a, b) => b - a);
    const named = new Map([[null, "–"]]);
    shares.forEach((value) => {
      if (named.has(value)) return;
      const [before, last] = [shares.indexOf(value), shares.lastIndexOf(value)];
      named.set(value, before === last ? `${before + 1}` : `${before + 1}–${last + 1}`);
    });
    return named;
  }

  // Wilson's 95% interval.
  function interval(count, n) {
    const z2 = 1.959963984540054 ** 2;
    const [middle, half] = [count + z2 / 2, Math.sqrt(z2 * ((count * (n - count)) / n + z2 / 4))];
    return [(middle - half) / (n + z2), (middle + half) / (n + z2)];
  }

  // Fills the columns of numbers at the chosen l2 radius: with the track's own numbers where it has them.
  function fill() {
    const at = Number(slide.value);
    far.textContent = radius().toPrecision(3).replace(/\.?0+$/, "") || "0";
    kinds.forEach((kind, n) => {
      const k = anywhere + n;
      const own = tested(k);
      heads[k].querySelector("button").replaceChildren(kind, document.createElement("br"), `L2 ${far.textContent}`, limit(k));
      sort.options[k].text = `${kind} L2 ${far.textContent}${limit(k)}`;
      for (const { id, keys } of facts) {
        const counts = RADII.rows[id]?.[kind];
        keys[k] = own >= 0 ? keys[own] : counts && !beyond(k) ? counts[at + 1] / counts[0] : null;
      }
    });
    const attacked = names.filter((name) => name.startsWith("robust L2 ")).map((name) => name.split(" ")[2]).join(" and ");
    const [robust, certified] = ["robust", "certified"].map((kind) => anywhere + kinds.indexOf(kind));
    const about = !kinds.includes("robust") ? "" : radius() === 0 ? "At radius 0 robust accuracy is clean accuracy. " : bound(robust)
      ? `No attack was run at this radius${attacked && ` (they were at ${attacked})`}: robust accuracy is at most the number shown and at least what is certified, and has no rank. `
      : "Every model was attacked at this radius; ranks are those of the tests. ";
    const voted = anywhere + kinds.indexOf("smoothed");
    const votes = kinds.includes("smoothed") && bound(voted) && !beyond(voted) ? " Smoothed numbers are at least those shown: sampling may stop once the columns' own radii are decided." : "";
    document.getElementById("known-there").textContent = about
      + (kinds.includes("certified") ? `Certified numbers are exact at any radius${tested(certified) < 0 ? "; their order here is not tested" : ""}.` : "") + votes;
  }

  // A row's number at the chosen radius with its interval, in percent, where the track has none; null where it has none.
  function share({ id, keys }, k) {
    const counts = RADII.rows[id]?.[kinds[k - anywhere]];
    if (!counts || keys[k] === null) return null;
    const count = counts[Number(slide.value) + 1];
    return [count / counts[0], ...interval(count, counts[0])].map((part) => (100 * part).toFixed(1));
  }

  // Writes a row's numbers at the chosen radius: of rows that are shown alone, since there may be many.
  function paint(fact) {
    kinds.forEach((kind, n) => {
      const k = anywhere + n;
      const cell = fact.row.cells[k];
      cell.dataset.of = `${kind}\nL2 ${far.textContent}${limit(k)}`;
      cell.removeAttribute("style");
      if (tested(k) >= 0) {
        const own = fact.row.cells[tested(k)];
        cell.style.cssText = own.style.cssText;
        if (!cell.style.length) cell.removeAttribute("style");
        cell.replaceChildren(...own.cloneNode(true).childNodes);
        return;
      }
      const shares = share(fact, k);
      if (!shares || bound(k)) {
        cell.textContent = shares ? `${bound(k)[1]} ${shares[0]}` : "–";
        return;
      }
      const [value, low, high] = shares;
      const [b, small] = ["b", "small"].map((name) => document.createElement(name));
      [b.textContent, small.textContent] = [value, `${low}–${high}`];
      cell.style.cssText = `--l:${low};--v:${value};--h:${high}`;
      cell.replaceChildren(b, small);
    });
  }

  // The columns that a view shows.
  const chosenColumns = () => (view === "radius" ? [2, ...kinds.map((_, k) => anywhere + k)] : numbers.views[view].map((name) => 2 + names.indexOf(name)));

  // The column that a view sorts by: its robust number, or what is certified where that is a bound; else clean accuracy.
  function lead() {
    if (view !== "radius") return view === "0" ? 0 : chosenColumns()[1] ?? 0;
    const known = (k) => !bound(k) && facts.some(({ keys }) => keys[k] !== null);
    return ["robust", "certified"].filter((kind) => kinds.includes(kind)).map((kind) => anywhere + kinds.indexOf(kind)).find(known) ?? 2;
  }

  // Shows the columns of the chosen view, and draws the charts with its numbers.
  function turn() {
    const any = view === "radius";
    const shown = new Set(chosenColumns());
    for (const box of views) box.checked = box.value === view;
    if (slide) slide.parentElement.hidden = !any;
    if (any) fill();
    const hidden = (from, to) => Array.from({ length: to - from }, (_, k) => from + k).filter((k) => !shown.has(k)).map((k) => `:nth-child(${k + 1})`);
    const never = any ? [] : hidden(anywhere, trust);
    document.getElementById("shown").textContent = `.few .board tr > :is(${[...hidden(2, anywhere), `:nth-child(n+${trust + 2})`].join()}) { display: none; }`
      + (never.length ? `.board tr > :is(${never.join()}) { display: none; }` : "");
    draw();
  }

  // Shows all numbers, or those of the view.
  function widen(every) {
    all.checked = every;
    layout.classList.toggle("few", !every);
  }

  // Draws the charts with the numbers of the view, once the table is shown.
  function draw() {
    const now = view === "radius" ? `${view} ${slide.value}` : view;
    if (now === drawn) return;
    drawn = now;
    setTimeout(drawNow);
  }

  function drawNow() {
    const columns = chosenColumns();
    const of = (kind) => columns.find((k) => words(k).startsWith(`${kind} `) && !(atRadius(k) && bound(k)));
    const byId = new Map(facts.map((fact) => [fact.id, fact]));
    redraw({ attacked: of("robust"), certified: of("certified") }, words, (id) => (k) => {
      const own = atRadius(k) ? tested(k) : k;
      if (own < 0) return share(byId.get(id), k)?.map(Number) ?? [null, null, null];
      const cell = byId.get(id).row.cells[own];
      const value = cell.querySelector("b");
      return value ? [value.textContent, ...cell.querySelector("small").textContent.split("–")].map(Number) : [null, null, null];
    });
  }

  // Turns to a view and sorts by its number.
  function look(at) {
    view = at;
    turn();
    [column, led] = [lead(), true];
    down = first(column);
    arrange();
    remember();
  }

  function arrange() {
    const sign = down ? -1 : 1;
    sorted = [...facts].sort((a, b) => {
      const [x, y] = [a.keys[column], b.keys[column]];
      if (x === null || y === null) return (x === null) - (y === null) || a.place - b.place;
      return sign * (worded(column) ? order.compare(x, y) : x - y) || a.place - b.place;
    });
    heads.forEach((head, k) => {
      if (k === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    sort.value = String(column);
    const hidden = (number(column) >= 0 && !chosenColumns().includes(column)) || column > trust;
    if (hidden) widen(true); // a column that orders the rows is shown
    choose();
  }

  // "1.5M" is 1,500,000; NaN for what is no number.
  function amount(text) {
    const [, digits, power] = text.trim().match(/^([\d,]*\.?\d+|[\d,]*\d\.)\s*([kMGT]?)$/i) ?? [];
    return digits ? Number(digits.replaceAll(",", "")) * 1000 ** " KMGT".indexOf((power || " ").toUpperCase()) : NaN;
  }

  function choose() {
    const asked = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wrong = CHOICES.map((name) => boxes[name]).filter((box) => !box.options && box.value.trim() && Number.isNaN(amount(box.value)));
    for (const box of Object.values(boxes)) if (!box.options) box.setAttribute("aria-invalid", String(wrong.includes(box)));
    const fits = (fact) => asked.every((word) => fact.text.includes(word)) && CHOICES.every((name) => {
      const value = boxes[name].value.trim();
      return !value || wrong.includes(boxes[name]) || (boxes[name].options ? has(fact, name, value) : fact.costs[name] <= amount(value));
    });
    const stay = sorted.filter(fits);
    const first = whole ? stay : stay.slice(0, FIRST);
    if (view === "radius") first.forEach(paint);
    rank(first);
    const seen = first.map((fact) => fact.row);
    const focus = document.activeElement;
    if (seen.length !== body.rows.length || seen.some((row, place) => row !== body.rows[place])) body.replaceChildren(...seen); // the rest cost no layout
    if (focus !== document.activeElement && body.contains(focus)) focus.focus();
    more.hidden = seen.length === stay.length;
    more.textContent = `Show all ${stay.length}`;
    document.getElementById("count").textContent = stay.length ? `${stay.length} of ${facts.length} models` : `None of ${facts.length} models matches. Reset shows all`;
    for (const box of wrong) document.getElementById("count").textContent += `. “${box.value.trim()}” is no number, so it filters nothing: write it as 10M`;
  }

  // Names the leader of each budget by the robust and certified numbers of the tabs, and with how many ranks its own overlaps.
  // Ranks that do not overlap are an order that the tests settle.
  function leaders() {
    const box = document.getElementById("budgets");
    const table = box.querySelector("table");
    const of = numbers.views.flatMap((view) => view.filter((name) => name.startsWith(view[1].split(" ")[0]) || name.startsWith("certified")).slice(0, 2));
    const shown = [...new Set(of)].map((name) => names.indexOf(name)).sort((a, b) => a - b);
    const range = ({ place }, k) => String(numbers.ranks[place][k]).split("-").map(Number);
    const link = ({ row }) => {
      const copy = row.cells[1].querySelector("a").cloneNode(true);
      copy.textContent = row.dataset.row;
      return copy;
    };
    const budgets = [...document.getElementById("budget").options].map(({ value }) => value)
      .map((budget) => [budget, facts.filter((one) => one.budgets.includes(budget))]).filter(([budget, members]) => budget && members.length);
    const heading = (scope, textContent) => Object.assign(document.createElement("th"), { scope, textContent });
    table.createTHead().insertRow().append(...["number", ...budgets.map(([budget]) => budget)].map((text) => heading("col", text)));
    const body = table.createTBody();
    for (const k of shown) {
      const line = body.insertRow();
      line.append(heading("row", words(k + 2)));
      for (const [budget, members] of budgets) {
        const cell = line.insertCell();
        cell.dataset.of = budget;
        const ranked = members.filter(({ keys }) => keys[k + 2] !== null).sort((a, b) => b.keys[k + 2] - a.keys[k + 2]);
        if (!ranked.length) {
          cell.textContent = "–";
          continue;
        }
        const [best, ...others] = ranked;
        const worst = range(best, k).at(-1);
        const open = others.filter((other) => range(other, k)[0] <= worst).length;
        const note = Object.assign(document.createElement("small"), {
          textContent: !others.length ? "the only one" : open ? `its rank overlaps with ${open} of ${others.length}` : `ahead of ${others.length}`,
        });
        cell.append(`${best.row.cells[k + 2].querySelector("b").textContent}% `, link(best), note);
      }
    }
    const known = facts.filter((fact) => fact.budgets.length).length;
    table.createCaption().textContent = `${known} of ${facts.length} models ${known === 1 ? "is" : "are"} within a budget, by the published cost of training.`;
    box.hidden = !budgets.length;
  }

  // Leaves out choices that keep every row or none, and lists without a choice.
  function prune() {
    for (const name of CHOICES.filter((name) => boxes[name].options)) {
      const kept = (value) => facts.filter((fact) => has(fact, name, value)).length;
      for (const option of [...boxes[name].options]) if (option.value && [0, facts.length].includes(kept(option.value))) option.remove();
      boxes[name].closest("label").hidden = boxes[name].options.length < 2;
    }
  }

  // Whether a row has a value of a list.
  function has({ norms, budgets, traits }, name, value) {
    return name === "norm" ? norms.has(value) : name === "budget" ? budgets.includes(value) : traits[name] === value;
  }

  function remember() {
    const state = new URLSearchParams();
    for (const [name, box] of [["find", find], ...Object.entries(boxes)]) if (box.value) state.set(name, box.value);
    if (view !== "0") state.set("view", view === "radius" ? far.textContent : named(view));
    if (column || down) state.set("sort", (down ? "-" : "") + key(column));
    if (all.checked) state.set("all", "1");
    if (chosen.length) state.set("compare", chosen.join(" "));
    const text = state.toString();
    try {
      history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    } catch {
      location.hash = text; // where a page from a file may not say more
    }
  }

  // A view's name in the address.
  const named = (at) => views[at].nextSibling.textContent.trim().replaceAll(" ", "-").toLowerCase();

  // A column's name in the address.
  const key = (k) => heads[k].dataset.name;

  function restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    if (location.hash && !location.hash.includes("=")) return; // a place on the page
    find.value = state.get("find") || "";
    for (const [name, box] of Object.entries(boxes)) {
      const value = state.get(name) || "";
      box.value = !box.options || [...box.options].some((option) => option.value === value) ? value : "";
    }
    document.querySelector(".filters").open = CHOICES.some((name) => boxes[name].value);
    widen(state.has("all"));
    const seen = state.get("view") || "";
    const at = views.findIndex((box) => box.value !== "radius" && named(box.value) === seen);
    view = at >= 0 ? views[at].value : slide && seen && Number(seen) >= 0 ? "radius" : "0";
    if (view === "radius") slide.value = String(RADII.radii.filter((radius) => radius < Number(seen) - 1e-9).length);
    turn();
    const by = state.get("sort") || "";
    down = by.startsWith("-");
    column = Math.max(0, heads.findIndex((head) => head.dataset.name === by.replace(/^-/, "")));
    if (view !== "0" && !by) [column, down] = [lead(), true];
    led = column === lead();
    const known = new Set(facts.map((fact) => fact.id));
    chosen = (state.get("compare") || "").split(" ").filter((id) => known.has(id)).slice(0, MOST);
    arrange();
    compare();
  }

  function sortBy(k) {
    down = k === column ? !down : first(k);
    [column, led] = [k, false];
    arrange();
    remember();
  }

  function compare() {
    for (const fact of facts) {
      const box = fact.row.querySelector(".pick input");
      box.checked = chosen.includes(fact.id);
      box.disabled = !box.checked && chosen.length >= MOST;
    }
    bar.hidden = !chosen.length;
    const link = bar.querySelector("a");
    if (chosen.length > 1) link.href = `compare/index.html#${chosen.join(",")}`;
    else link.removeAttribute("href");
    bar.querySelector("[role=status]").textContent = chosen.join(", ") + (chosen.length < 2 ? ": choose another one" : chosen.length === MOST ? ": no more than these" : "");
  }

  heads.forEach((head, k) => {
    const title = [...head.childNodes].map((node) => node.textContent).join(" ").replace(/\s+/g, " ").trim();
    head.dataset.name = (k >= anywhere && k < trust ? `${kinds[k - anywhere]} at radius` : title).replace(/[ ,]+/g, "-").toLowerCase();
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(k));
    head.append(button);
    sort.append(new Option(title, String(k)));
  });
  heads[0].append(document.createElement("small"));
  leaders();
  prune();
  for (const { row, id } of facts) {
    const label = document.createElement("label");
    label.className = "pick";
    const box = document.createElement("input");
    box.type = "checkbox";
    box.autocomplete = "off";
    box.setAttribute("aria-label", `compare ${id}`);
    label.append(box, "compare");
    row.cells[1].append(label);
    box.addEventListener("change", () => {
      chosen = chosen.filter((other) => other !== id);
      if (box.checked) chosen.push(id);
      compare();
      remember();
    });
  }
  body.addEventListener("click", ({ target }) => { // shows the figures of a row, where nothing hovers
    if (!target.closest("a, button, label, input")) target.closest("tr").classList.toggle("told");
  });
  more.addEventListener("click", () => {
    const next = body.rows.length;
    whole = true;
    choose();
    body.rows[next].querySelector("th a").focus();
  });
  for (const place of document.querySelectorAll(".scripted")) place.hidden = false;
  document.querySelector(".tools").addEventListener("submit", (event) => event.preventDefault());
  for (const box of [find, ...Object.values(boxes)]) box.addEventListener(box.options ? "change" : "input", () => { choose(); remember(); });
  for (const box of views) box.addEventListener("change", () => look(box.value));
  if (slide) {
    slide.max = String(RADII.radii.length - 1);
    const marks = document.createElement("datalist"); // the track's own radii
    marks.id = "marks";
    marks.append(...numbers.marks.map((mark) => new Option("", RADII.radii.indexOf(mark))));
    slide.after(marks);
    slide.setAttribute("list", "marks");
    slide.value = String(RADII.radii.indexOf(numbers.start));
    slide.addEventListener("input", () => {
      fill();
      if (led) [column, down] = [lead(), true];
      arrange();
      remember();
    });
    slide.addEventListener("change", draw);
  }
  all.addEventListener("change", () => { widen(all.checked); remember(); });
  sort.addEventListener("change", () => {
    const at = Number(sort.value);
    if (atRadius(at) && view !== "radius") { view = "radius"; turn(); }
    column = -1;
    sortBy(at);
  });
  document.getElementById("turn").addEventListener("click", () => sortBy(column));
  document.getElementById("reset").addEventListener("click", () => {
    for (const box of [find, ...Object.values(boxes)]) box.value = "";
    [column, down, led, chosen, view] = [0, false, true, [], "0"];
    widen(false);
    turn();
    arrange();
    compare();
    remember();
  });
  bar.querySelector("button").addEventListener("click", () => { chosen = []; compare(); remember(); });
  addEventListener("hashchange", restore);
  addEventListener("keydown", (event) => { // hides what a rank says, as for any hint
    if (event.key === "Escape") for (const tie of document.querySelectorAll(".rank button:is(:hover, :focus)")) tie.classList.add("quiet");
  });
  addEventListener("focusin", () => document.querySelectorAll(".quiet").forEach((tie) => tie.classList.remove("quiet")));
  restore();

  // A table that fits needs no room of its own to scroll in, and charts fill the place that they get.
  const room = document.querySelector(".wide");
  const fit = () => room.classList.toggle("fits", table.offsetWidth <= room.clientWidth);
  new ResizeObserver(fit).observe(room);
  new ResizeObserver(fit).observe(table);
  new ResizeObserver(() => dispatchEvent(new Event("resize"))).observe(document.querySelector(".overview"));
});
