"""Linear policies: experts with a ridge model per arm, decided and updated in compiled code."""
