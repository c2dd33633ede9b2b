"""Checks of outcomes and splits, as expectations of Great Expectations, and the overview of a pool's table.

    catalog.check_names(stage) -> list[CheckSpec]  static: name, severity, expectation; imports nothing heavy
    run.run_checks('outcomes', outcomes, pool=pool) -> list[CheckResult]
    run.run_checks('splits', outcomes, splits=splits, pool=pool) -> list[CheckResult]
    overview.overview(pool_file) -> Overview

Each check has one result, in the order of `check_names`. A check that breaks is a failed result with the
traceback in `error`, never an exception.
"""
