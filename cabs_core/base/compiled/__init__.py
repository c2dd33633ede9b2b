"""What every compiled kernel shares: how numba is called, its cache, random numbers, linear algebra."""
