"""Scorers of single answers: by a reference (`text`), a program (`command`), a model (`judge`), people
(`labels`).
"""
