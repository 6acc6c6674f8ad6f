"""docs/certificates.md is generated from what was measured, and current."""

from __future__ import annotations

from measurements import certificates_page


def test_the_page_is_generated_from_what_was_measured() -> None:
    hint = "run python measurements/certificates_page.py"
    assert certificates_page.PAGE.read_text() == certificates_page.page(), hint
