"""The catalog: a record per policy, source, encoder, condition and cost regime; all derives from it.

The registry of classes, asset descriptions, labels in reports, the SQL of the marts, tuning grids and tests
read these records, so that adding one is adding a record. Other packages add theirs by entry points
(`plugins`). Light: importing it imports no policy.
"""
