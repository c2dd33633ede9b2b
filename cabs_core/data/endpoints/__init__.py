"""What is said to models' endpoints, and what they say back: requests, replies, tokens, bills, addresses.

Each is read here, for server, collection, LiteLLM plug-in and the readers of logs and tables.
"""
