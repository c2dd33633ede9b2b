"""A stand-in for providers, for tests and for trying the server and the collection out.

    python -m tests.stand_in --port 9100

It speaks four dialects and answers at once. Models of known quality (`models`: names that begin with tiny,
coder, writer or grand) and a judge answer prompts of its own; all others repeat the prompt, for 10 tokens in
and 5 out. Words in the name of a model ask for trouble: `m1-limited-flaps`. `--help` lists them.

`POST /behave {"model": "words"}` changes a model's words while it runs. `GET /bill` says what came and what
was charged: {model: {requests, charged, again, input, output}}. `GET /seen` says what the last call of each
model brought: {model: {headers, body}}.
"""
