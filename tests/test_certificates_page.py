"""docs/certificates.md is what the measurements say."""

from __future__ import annotations

from benchmarks import certificates_page


def test_the_page_is_generated_from_what_was_measured() -> None:
    hint = "run python benchmarks/certificates_page.py"
    assert certificates_page.PAGE.read_text() == certificates_page.page(), hint


def test_everything_is_measured_and_nothing_was_violated() -> None:
    for measurement in certificates_page.MEASUREMENTS:
        text = (certificates_page.MEASURED / f"{measurement.name}.md").read_text()
        assert "| " in text or "violations" in text, measurement.name
        assert "VIOLATION" not in text
        if measurement.name == "soundness":
            assert "violations: 0" in text
