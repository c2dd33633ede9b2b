"""Names of the fields of a request's body that hold its texts, its tools and the form of its answer.

`request` reads these fields, `output_limits` passes them over in its search for limits, and the server
compares requests by their tools.
"""

#: Fields that hold the messages of a request, a log or a table, in the order in which they are looked for.
MESSAGES = ("messages", "input", "prompt", "contents")
#: Fields that hold instructions outside of the messages.
INSTRUCTIONS = ("system", "instructions")
#: Fields that hold the schemas of tools.
TOOLS = ("tools", "functions")
#: Fields that hold the format of the answer, or an object with `format`, in chat, responses and messages.
FORMATS = ("response_format", "text", "output_format", "output_config")
