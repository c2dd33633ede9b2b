"""Requests to models' endpoints and their replies: texts, tokens, prices, addresses and errors.

Every provider writes these things in its own way, and each of them is read in one module here. The server,
the collection of answers, the LiteLLM plug-in and the readers of logs and tables use these modules, so that
one request means the same to all of them.
"""
