// Fills in the seconds that this machine measured; without times.js the dashes stay.
if (typeof TIMES !== "undefined") {
  for (const place of document.querySelectorAll("[data-row]")) {
    const seconds = TIMES[place.dataset.row];
    if (!seconds) continue;
    for (const cell of place.querySelectorAll("[data-time]")) cell.textContent = seconds[cell.dataset.time].toFixed(1);
  }
}
