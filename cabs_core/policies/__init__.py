"""Policies: one module a family, one registry."""
