// Puts a button beside each command that copies it; where the browser lets no page write to the clipboard, selects it.
"use strict";

function select(text) {
  const range = document.createRange();
  range.selectNodeContents(text);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

async function copy(text, button) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text.textContent);
    done = true;
  } catch {
    select(text);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
  clearTimeout(button.back); // of an earlier click
  button.back = setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

for (const place of document.querySelectorAll(".copied")) {
  const text = place.querySelector("code");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-live", "polite");
  button.setAttribute("aria-label", `Copy ${text.textContent.trim().split("\n")[0]}`);
  button.addEventListener("click", () => copy(text, button));
  place.append(button);
}

// A place that is linked to may be folded away.
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let box = target; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
}
addEventListener("hashchange", unfold);
unfold();
