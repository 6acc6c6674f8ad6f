// Fills in the seconds that this machine measured; without times.js the dashes stay.
if (typeof TIMES !== "undefined") {
  for (const place of document.querySelectorAll("[data-row]")) {
    const seconds = TIMES[place.dataset.row];
    if (!seconds) continue;
    for (const cell of place.querySelectorAll("[data-time]")) {
      const value = seconds[cell.dataset.time];
      if (value !== undefined) cell.textContent = value.toFixed(1);
    }
  }
}
