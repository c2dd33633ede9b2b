"""Names of the formats of logs, as `source.format` of a pool file has them.

A format is a module of the folder `cabs_core/data/logs/formats`, and its name is the name of the module. The
names are read from the folder, so that a pool file is checked without an import of any format.
"""

from pkgutil import iter_modules

from cabs_core.base.paths import PACKAGE_FOLDER

#: names of the tools whose logs can be read, in alphabetical order
LOG_FORMATS = tuple(
    sorted(module.name for module in iter_modules([str(PACKAGE_FOLDER / "data" / "logs" / "formats")]))
)
