"""Which folders are installed under which name; everything else about the package stands in pyproject.toml.

`assets` is where a Dagster engineer looks for assets, but too common a name for a package that others install
beside theirs: it is imported as `cabs_assets`.
"""

from setuptools import find_namespace_packages, setup

FOLDERS = ["cabs_core*", "cabs_server*", "cabs_dagster*", "dbt_like_sql*"]

setup(
    packages=["cabs_assets", *find_namespace_packages(include=FOLDERS, exclude=["*.__pycache__*"])],
    package_dir={"cabs_assets": "assets"},
)
