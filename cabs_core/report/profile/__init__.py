"""The page about a pool's data."""
