"""docs/certificates.md is what the measurements say."""

from __future__ import annotations

import re

from measurements import certificates_page

NOTHING_BROKE = {
    "soundness": r"^violations: 0$",
    "network": r"^violations: 0 of [1-9]\d* balls, 0 of [1-9]\d* plants$",
}


def test_the_page_is_generated_from_what_was_measured() -> None:
    hint = "run python measurements/certificates_page.py"
    assert certificates_page.PAGE.read_text() == certificates_page.page(), hint


def test_everything_is_measured_and_nothing_was_violated() -> None:
    for measurement in certificates_page.MEASUREMENTS:
        text = (certificates_page.MEASURED / f"{measurement.name}.md").read_text()
        assert " cores, one thread" in text.splitlines()[0], measurement.name
        if measurement.name in NOTHING_BROKE:
            assert re.search(NOTHING_BROKE[measurement.name], text, re.MULTILINE), measurement.name
