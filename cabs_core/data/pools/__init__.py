"""The pools there are: finding, adding and retiring their files.

Nothing is imported before it is used: `cabs --help` and the shell's completion stay quick.
"""
