"""Plots: one Vega-Lite specification per figure, drawn in a page (by Vega) and as a PNG (by vl-convert).

Colours are CSS variables in a page, so that one drawing serves light, dark and print, and fixed in a PNG.
Series differ in shape and dash too, and bear their names.
"""
