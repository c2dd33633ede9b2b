"""Parts that all compiled kernels share: decorators, numba's cache, random numbers, linear algebra."""
