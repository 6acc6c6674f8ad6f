"""README.md's picture of a board, by headless Chromium: `python -m leaderboard.screenshot [<site> [<picture>]]`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

from benchmark.runtime import errors
from benchmark.runtime.errors import BenchmarkError

SITE = Path("work/site/cifar10_jpeg")
PICTURE = Path("docs/images/board.png")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1.5",
    "--virtual-time-budget=20000",  # until the charts are drawn
)  # fmt: skip
WIDTH, HEIGHT = 1440, 3000  # CSS pixels; what is blank beneath the table is cut off
MARGIN = 24
COLOURS = 256  # a palette keeps the picture small
SECONDS = 120  # a browser that takes longer hangs
HIDDEN = "details.key, footer, .pick"


def photograph(site: Path, picture: Path) -> None:
    """Writes the board of the rendered `site` to `picture`, a PNG.

    Raises:
        BenchmarkError: no site, no Chromium, or a Chromium that fails.
    """
    if not (site / "index.html").exists():
        raise BenchmarkError(f"{site / 'index.html'} is missing; run `rvb site` to build it")
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise BenchmarkError("no Chromium found; install it (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        page, taken = Path(folder) / "index.html", Path(folder) / "board.png"
        shutil.copytree(site / "static", Path(folder) / "static")
        style = f"<style>{HIDDEN} {{ display: none }}</style></head>"
        page.write_text((site / "index.html").read_text().replace("</head>", style, 1))
        command = [
            browser, *FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={taken}", page.as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{browser} took no picture in {SECONDS} s; end it and try again") from None
        if done.returncode or not taken.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BenchmarkError(f"{browser} took no picture: {last}")
        picture.parent.mkdir(parents=True, exist_ok=True)
        _trimmed(taken).save(picture, optimize=True)


def _trimmed(path: Path) -> Image.Image:
    """Return the picture in few colours, without the blank space beneath its contents."""
    image = Image.open(path).convert("RGB")
    blank = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    box = ImageChops.difference(image, blank).getbbox()
    if box is None:
        raise BenchmarkError("the picture of the board is blank; look at the site in a browser")
    shown = image.crop((0, 0, image.width, min(image.height, box[3] + MARGIN)))
    return shown.quantize(COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    errors.run(lambda: photograph(*(given or [SITE]), *([PICTURE] if len(given) < 2 else [])))
