"""Checks of outcomes and splits, as expectations of Great Expectations, and the overview of a pool's table.

    catalog.checks_of_stage(stage) -> list[CheckSpec]    name, severity, expectation; imports no large library
    run.run_checks('outcomes', outcomes, pool=pool) -> list[CheckResult]
    run.run_checks('splits', outcomes, splits=splits, pool=pool) -> list[CheckResult]
    overview.overview(pool_file) -> Overview

Each check has one result, in the order of `checks_of_stage`. A check that breaks is a failed result with the
traceback in `error`, never an exception.
"""
