"""The HTTP edge: OpenAI's protocol, server-sent events, WebSocket and plain JSON, in front of Triton or of any server
that speaks OpenAI's.

    app.py          FastAPI: paths, bodies, answers          bodies.py  what a request may say     refusals.py  errors
    core.py         one request's way (passage.py): version, replica, admission, deadline, and how it ended
    shadows.py      copies: shadow traffic, and whether a refusal was the version's fault
    generating.py   text as it comes: chunks in OpenAI's words, as events, messages or one answer
    triton.py       Triton over the load generator's own HTTP/2; alike.py reads a token's response without protobuf
    openai.py       somebody else's server, bytes as they are
    predicting.py   JSON to tensors and back                 chat.py    a conversation as the model's prompt
    reading.py      what an embedder reads of a text         metrics.py Prometheus
    keeping.py      the lab's Triton, replaced when it ends  serve.py   the process

Where a request goes is decided by lab/track/routing.py. lab/serve/proxy.py is another thing: it passes Triton's own
protocol through, byte by byte, and only sees to it that the model is loaded; both hold a model by the same residency.
"""
