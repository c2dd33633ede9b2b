"""What every door stands on: errors, paths and files, hashes, secrets, threads, compiled code, the utility of
an answer, how sure a figure is, and the catalog, with one record a policy, source, encoder and condition.

Nothing here knows what a pool, a policy's formula or a server is. Public: `CabsError`.
"""
