"""Checks of outcomes and splits, as expectations of Great Expectations, and the profile page of a pool.

    catalog.check_names(stage) -> list[CheckSpec]  static: name, severity, expectation; imports nothing heavy
    run.run_checks('outcomes', outcomes, pool=pool) -> list[CheckResult]
    run.run_checks('splits', outcomes, splits=splits, pool=pool) -> list[CheckResult]
    profile.write_profile(outcomes, splits, pool, path)

One result per check, in the order of `check_names`. A check that breaks is a failed result with the traceback
in `error`, never an exception.
"""
