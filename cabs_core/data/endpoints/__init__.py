"""What is said to models' endpoints, and what they say back: requests, replies, token counts, bills,
addresses.

Each is read in one place here, for the server, the collection, the LiteLLM plug-in and the readers of logs
and tables.
"""
