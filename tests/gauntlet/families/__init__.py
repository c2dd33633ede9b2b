"""One module a family of probes; `runner.Family` says what a module defines."""
