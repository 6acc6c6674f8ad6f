// Sorts, filters and remembers: what is chosen stands in the address, after the #. Without this script the table is whole and sorted.
"use strict";
addEventListener("DOMContentLoaded", () => { // after times.js
  const table = document.querySelector("table.board");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const [find, paper, norm, tier, sort, all] = ["find", "paper", "norm", "tier", "sort", "all"].map((id) => document.getElementById(id));
  const bar = document.querySelector(".compare");
  const more = document.getElementById("more");
  const MOST = 5; // rows that can be compared
  const FIRST = 50; // rows that are laid out at once, before more are asked for
  const lead = heads.findIndex((head) => head.textContent.trim() === "trust") - 2; // numbers that are always shown
  const names = { robust: "attacked", certified: "certified", smoothed: "smoothed" };
  const order = new Intl.Collator("en");
  let chosen = []; // rows to compare, in the order in which they were chosen
  let column = 0;
  let down = false;
  let sorted = []; // what is known of the rows, in their order
  let whole = false;

  // A row's number in a column of the page; null where it has none.
  const times = typeof TIMES === "undefined" ? {} : TIMES;
  const facts = rows.map((row, place) => {
    const own = numbers.rows[place];
    const id = row.dataset.row;
    const submission = id.split("-")[0];
    const seconds = times[id] || {};
    const norms = new Set();
    numbers.names.forEach((name, k) => {
      const [kind, of] = name.split(" ");
      if (names[kind] && own[k]) norms.add(`${names[kind]} in ${of}`);
    });
    const text = (row.cells[1].textContent + " " + numbers.papers[submission]).toLowerCase();
    const keys = [place, row.cells[1].textContent.trim(), ...own.slice(0, lead), row.cells[lead + 2].textContent.trim(),
      ...own.slice(lead), seconds.training ?? null, seconds.evaluation ?? null];
    const [rank, tip] = [row.cells[0].firstElementChild, row.querySelector(".tip")];
    const said = [rank.textContent, tip?.textContent]; // by the number that ranks
    return { row, id, place, submission, text, norms, tier: row.querySelector(".trust .badge").textContent, keys, rank, tip, said };
  });
  const worded = (k) => k === 1 || k === lead + 2;
  const first = (k) => k >= 2 && k < heads.length - 4 && !worded(k); // the highest first: shares of images

  // The place of a column among the numbers, -1 of one that is none.
  const number = (k) => { const n = k < lead + 2 ? k - 2 : k - 3; return k >= 2 && k !== lead + 2 && n < numbers.names.length ? n : -1; };

  // Ranks are by the number that sorts, or by the one that ranks where none does.
  function rank() {
    const by = number(column);
    const words = by < 0 ? "" : sort.options[column].text;
    for (const { place, rank, tip, said } of facts) {
      rank.textContent = by < 0 ? said[0] : numbers.ranks[place][by]?.replace("-", "–") ?? "–";
      if (tip) tip.textContent = by < 0 ? said[1] : `By ${words} McNemar's exact test over the images, with seeds where they are known, leaves it these places.`;
    }
    heads[0].querySelector("small").textContent = words && `by ${words}`;
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
    rank();
    if (column > lead + 2 && !all.checked) all.click(); // a column that orders the rows is shown
  }

  function choose() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const stay = sorted.filter((fact) => words.every((word) => fact.text.includes(word)) && (!paper.value || fact.submission === paper.value) &&
      (!norm.value || fact.norms.has(norm.value)) && (!tier.value || fact.tier === tier.value));
    const seen = (whole ? stay : stay.slice(0, FIRST)).map((fact) => fact.row);
    const focus = document.activeElement;
    if (seen.length !== body.rows.length || seen.some((row, place) => row !== body.rows[place])) body.replaceChildren(...seen); // the rest cost no layout
    if (focus !== document.activeElement && body.contains(focus)) focus.focus();
    more.hidden = seen.length === stay.length;
    more.textContent = `Show all ${stay.length}`;
    document.getElementById("count").textContent = stay.length ? `${stay.length} of ${facts.length} models` : `No model of ${facts.length} fits; Reset shows all`;
  }

  function remember() {
    const state = new URLSearchParams();
    for (const [key, value] of [["find", find.value], ["paper", paper.value], ["norm", norm.value], ["trust", tier.value]]) if (value) state.set(key, value);
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

  // A column's name in the address.
  const key = (k) => heads[k].dataset.name;

  function restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    if (location.hash && !location.hash.includes("=")) return; // a place on the page
    find.value = state.get("find") || "";
    for (const [box, name] of [[paper, "paper"], [norm, "norm"], [tier, "trust"]]) {
      const wanted = state.get(name) || "";
      box.value = [...box.options].some((option) => option.value === wanted) ? wanted : "";
    }
    all.checked = state.has("all");
    const by = state.get("sort") || "";
    down = by.startsWith("-");
    column = Math.max(0, heads.findIndex((head) => head.dataset.name === by.replace(/^-/, "")));
    const known = new Set(facts.map((fact) => fact.id));
    chosen = (state.get("compare") || "").split(" ").filter((id) => known.has(id)).slice(0, MOST);
    arrange();
    choose();
    compare();
  }

  function sortBy(k) {
    down = k === column ? !down : first(k);
    column = k;
    arrange();
    choose();
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
    const said = [...head.childNodes].map((node) => node.textContent).join(" ").replace(/\s+/g, " ").trim();
    head.dataset.name = said.replace(/[ ,]+/g, "-").toLowerCase();
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(k));
    head.append(button);
    sort.append(new Option(said, String(k)));
  });
  heads[0].append(document.createElement("small"));
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
  more.addEventListener("click", () => {
    const next = body.rows.length;
    whole = true;
    choose();
    body.rows[next].querySelector("th a").focus();
  });
  for (const place of document.querySelectorAll(".scripted")) place.hidden = false;
  document.querySelector(".tools").addEventListener("submit", (event) => event.preventDefault());
  for (const box of [find, paper, norm, tier]) box.addEventListener(box === find ? "input" : "change", () => { choose(); remember(); });
  all.addEventListener("change", remember);
  sort.addEventListener("change", () => { column = -1; sortBy(Number(sort.value)); });
  document.getElementById("turn").addEventListener("click", () => sortBy(column));
  document.getElementById("reset").addEventListener("click", () => {
    find.value = paper.value = norm.value = tier.value = "";
    [column, down, all.checked, chosen] = [0, false, false, []];
    arrange();
    choose();
    compare();
    remember();
  });
  bar.querySelector("button").addEventListener("click", () => { chosen = []; compare(); remember(); });
  addEventListener("hashchange", restore);
  addEventListener("keydown", (event) => { // hides what a rank says, as for any hint
    if (event.key === "Escape") for (const tie of document.querySelectorAll(".tie:hover, .tie:focus")) tie.classList.add("quiet");
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
