// Fills in the seconds that were measured, and on what; without times.js the dashes stay.
if (typeof TIMES !== "undefined") {
  const devices = (part) => Object.entries(part || {}).sort((a, b) => b[1] - a[1]);
  const of = (row) => Object.values(row.devices || {}).flatMap((part) => Object.keys(part));
  const several = new Set(Object.values(TIMES).flatMap(of)).size > 1; // then seconds of one kind are not those of another
  for (const { cells } of document.querySelectorAll(".board tr[data-row]")) { // the last two cells, unnamed since rows are many
    [cells[cells.length - 2].dataset.time, cells[cells.length - 1].dataset.time] = ["training", "evaluation"];
  }
  for (const place of document.querySelectorAll("[data-row]")) {
    const seconds = TIMES[place.dataset.row];
    if (!seconds) continue;
    for (const cell of place.querySelectorAll("[data-time]")) {
      const value = seconds[cell.dataset.time];
      if (value === undefined) continue;
      const used = devices((seconds.devices || {})[cell.dataset.time]);
      cell.textContent = value.toFixed(1);
      if (!used.length || !(several || cell.matches("dd"))) continue;
      for (const [device, much] of used) {
        const line = document.createElement("small");
        line.textContent = used.length > 1 ? `${much.toFixed(1)} ${device}` : device;
        cell.append(line);
      }
    }
  }
}
