"""Figures of records and studies. Pure: SVG text and Vega-Lite specifications, no files."""
