"""The catalog: one record for each policy, source, encoder, stress condition and cost regime.

The registry of classes, descriptions of assets, labels in reports, the marts, grids of tuning and tests read
the records, so adding a policy means adding a record. Other packages add records by entry points (`plugins`).
Importing the catalog imports no policy.
"""
