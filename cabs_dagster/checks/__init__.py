"""Asset checks: on outcomes, on traces, on results across policies, on marts."""
