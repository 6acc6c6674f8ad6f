// What models/<row>/images.js files hold, and tests of two rows on the same images. Touches no page.
"use strict";
const RVB = {
  rows: new Map(),

  // Called by models/<row>/images.js.
  add(row, data) {
    RVB.rows.set(row, data);
  },

  // Base64 of n bits, eight to a byte, the first the highest, to an array of 0 and 1.
  bits(packed, n) {
    const bytes = atob(packed);
    return Uint8Array.from({ length: n }, (_, i) => (bytes.charCodeAt(i >> 3) >> (7 - (i & 7))) & 1);
  },

  // How many images both rows get right, one alone, neither.
  agreement(first, second) {
    const counts = [0, 0, 0, 0];
    for (let i = 0; i < first.length; i++) counts[2 * first[i] + second[i]]++;
    return { both: counts[3], first: counts[2], second: counts[1], neither: counts[0] };
  },

  // Two-sided p-value of McNemar's exact test: of the images on which two rows differ, each wins as often as the other.
  mcnemar(wins, losses) {
    if (wins === losses) return 1;
    const n = wins + losses;
    let log = -n * Math.LN2; // of the chance of k wins
    let tail = 0;
    for (let k = 0; k <= Math.min(wins, losses); k++) {
      tail += Math.exp(log);
      log += Math.log((n - k) / (k + 1));
    }
    return Math.min(1, 2 * tail);
  },
};
