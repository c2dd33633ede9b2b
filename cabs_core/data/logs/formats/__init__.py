"""Formats of logs: a module for each tool whose log can be read.

The name of a module is the name of its format in pool files. Each module has a `FORMAT`, which says where the
tool writes what.
"""

from importlib import import_module

from cabs_core.base.catalog.log_formats import LOG_FORMATS
from cabs_core.data.logs.calls import Format

#: {name of a format: places where its tool writes the values}
FORMATS: dict[str, Format] = {name: import_module(f"{__name__}.{name}").FORMAT for name in LOG_FORMATS}
