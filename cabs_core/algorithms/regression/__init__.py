"""Regression of the policies: ridge models updated one row at a time (here), and networks (`neural`).

One model per arm: A = lambda I + sum w x x', theta = A^-1 sum w y x, kept as A^-1 (`inverse`, lower triangle
in a square array) and theta, updated by Sherman-Morrison in float64. All kernels are compiled, allocate
nothing and take no GIL.
"""
