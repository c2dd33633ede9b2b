"""Figures, each with one Vega-Lite specification. Vega draws it in a page, and vl-convert as a file.

Colours are CSS variables in a page, so that one drawing serves light, dark and print, and fixed in a PNG.
Series differ in shape and dash too, and bear their names.
"""
