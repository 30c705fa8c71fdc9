"""A server's URL, as a person types it: which protocol, which host, which port; and what is wrong with it, in one line.

grpc://HOST:PORT           Triton's gRPC (also HOST:PORT alone)
http://HOST:PORT           Triton's HTTP
openai+http://HOST:PORT    an OpenAI-compatible server; with /v1/chat/completions behind it, as a chat
torchserve+http://HOST:PORT
replicate+https://HOST    Replicate's predictions API (https://api.replicate.com)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lab.errors import InputError, ServerError
from lab.serve.listening import Listener, listener

EXAMPLES = {
    "grpc": "grpc://HOST:PORT",
    "http": "http://HOST:PORT",
    "openai+http": "openai+http://HOST:PORT",
    "openai+https": "openai+https://HOST:PORT",
    "torchserve+http": "torchserve+http://HOST:PORT",
    "replicate+http": "replicate+http://HOST:PORT",
    "replicate+https": "replicate+https://HOST",
}
SECURE = {"grpcs": "grpc", "https": "http", "torchserve+https": "torchserve+http"}
"""Schemes with TLS that the load generator does not speak, and the plain one."""
TRITON = ("grpc", "http")
NAMES = {
    "triton": "Triton",
    "openai": "a server of the OpenAI protocol",
    "torchserve": "TorchServe",
    "replicate": "Replicate's predictions API",
}
SERVED_BY = {"triton": "http", "openai": "openai+http", "torchserve": "torchserve+http"}
WITH_A_USUAL_PORT = ("openai", "replicate")


@dataclass(frozen=True)
class Address:
    """`path` is what stands behind the port, without the last slash; `given` what the user wrote."""

    scheme: str
    host: str
    port: int
    path: str = ""
    given: str = field(default="", compare=False)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"

    @property
    def speaks_triton(self) -> bool:
        return self.scheme in TRITON


def address(url: str) -> Address:
    """InputError in one line for what is no such URL."""
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"grpc://{text}")
    except ValueError as error:  # of brackets without an address, and of characters that turn into others
        raise InputError(f"url {url!r}: {error}; allowed: {', '.join(EXAMPLES.values())}") from None
    scheme = parts.scheme.lower()
    if scheme in SECURE:
        plain = SECURE[scheme]
        raise InputError(
            f"url {url!r}: the lab measures {scheme} servers without TLS only; allowed: {EXAMPLES[plain]} of the plain "
            "port, or of a proxy that ends the TLS"
        )
    if scheme not in EXAMPLES:
        raise InputError(f"url {url!r}: there is no scheme {scheme!r}; allowed: {', '.join(EXAMPLES.values())}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InputError(f"url {url!r}: the port is no number from 1 to 65535; allowed: {EXAMPLES[scheme]}") from None
    if host and port is None and scheme.partition("+")[0] in WITH_A_USUAL_PORT:
        port = 443 if scheme.endswith("https") else 80
    path = parts.path.rstrip("/")
    wrong = parts.query or parts.fragment or parts.username or (path and scheme in TRITON)
    wrong = wrong or (host is not None and any(char.isspace() for char in host))
    if not host or not port or wrong:
        raise InputError(f"url {url!r}: allowed is {EXAMPLES[scheme]}{'' if scheme in TRITON else ', and a path'}")
    if ":" in host:
        host = f"[{host}]"
    return Address(scheme, host, port, path, url)


def unreachable(there: Address, said: str) -> ServerError:
    """Why a server could not be used: what was said, and who it is that listens there."""
    found = listener(there.host.strip("[]"), there.port)
    url = there.given or there.url
    if found.kind == "unknown":
        return ServerError(f"{url}: {found.what}; is it spelled right?")
    if found.kind == "nobody":
        return ServerError(f"{url}: nobody listens there; is the server up, and the port the right one?")
    if found.kind == "silent":
        return ServerError(f"{url}: the port takes connections, and nothing answers; is the server stopped?")
    wanted = "grpc" if there.scheme == "grpc" else "http"
    if there.scheme.endswith("https"):
        if found.kind == "tls":
            return ServerError(f"{url}: {said}")
        plain = there.scheme.removesuffix("s")
        hint = f"; try {plain}://{there.host}:{there.port}{there.path}" if found.serves == _served(plain) else ""
        return ServerError(f"{url}: {found.what} answers there, without TLS{hint}")
    if found.kind != wanted or found.serves not in (None, _served(there.scheme)):
        return ServerError(f"{url}: {found.what} answers there{_better(there, found)}")
    if wanted == "http" and found.serves is None:
        return ServerError(f"{url}: {found.what} answers there, and not {NAMES[_served(there.scheme)]}: {said}")
    return ServerError(f"{url}: {said}")


def _served(scheme: str) -> str:
    return "triton" if scheme in TRITON else scheme.partition("+")[0]


def _better(there: Address, found: Listener) -> str:
    """What the user may have meant."""
    if found.serves:
        return f"; try {SERVED_BY[found.serves]}://{there.host}:{there.port}"
    if found.kind == "grpc":
        return f", not HTTP; try grpc://{there.host}:{there.port}"
    if found.kind == "tls" and f"{there.scheme}s" in EXAMPLES:
        return f"; try {there.scheme}s://{there.host}:{there.port}{there.path}"
    if found.kind == "tls":
        return "; the lab measures plain ports only: give it one, or a proxy that ends the TLS"
    return ", not gRPC" if there.scheme == "grpc" else ", not HTTP"
