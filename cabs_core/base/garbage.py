"""How often Python looks for garbage in processes that make many objects which stay."""

import gc

#: number of new objects between two collections; Python's default is 700 or 2,000, by version
OBJECTS_BETWEEN_COLLECTIONS = 50_000


def collect_rarely() -> None:
    """Let this process look for garbage once in `OBJECTS_BETWEEN_COLLECTIONS` new objects.

    The definitions of Dagster, and the types and code of a compiler, all stay. Looking for garbage among them
    finds none: with Python's default it takes a fifth of importing Dagster and a tenth of compiling kernels.
    """
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
