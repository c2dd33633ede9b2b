"""Helpers that all other packages import, and that import none of them.

They are errors, paths and atomic files, hashes, secrets, threads, compiled code, the utility of an answer,
statistics, and the catalog with one record for each policy, source, encoder and stress condition. Nothing
here knows a pool, the formula of a policy or a server. `CabsError` is public.
"""
