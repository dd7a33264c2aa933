"""Checks each request of the client, and each answer to it, against the agent's own OpenAPI document."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from openapi_core import OpenAPI
from openapi_core.testing import MockRequest, MockResponse

from slotkeeper import _clock
from slotkeeper._transport import Answer, Request, Wire


@dataclass(frozen=True)
class Documents:
    """What an agent serves at a unix socket, at a loopback address, where requests need a token, and at `http.listen`."""

    unix: dict[Any, Any]
    loopback: dict[Any, Any]
    read_only: dict[Any, Any]


class Contract:
    """The documents, the operations that were used, and what did not agree with the documents."""

    def __init__(self, documents: Documents) -> None:
        self._unix = OpenAPI.from_dict(documents.unix)
        self._loopback = OpenAPI.from_dict(documents.loopback)
        self._operations = [
            (method.upper(), re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), name)
            for name, method, path in operations(documents.unix)
        ]
        self.used: list[str] = []
        self.faults: list[str] = []
        self.expires: dict[str, float] = {}
        """When each lease expires by the last answer, counted from before its request."""

    def check_request(self, sent: bytes) -> MockRequest:
        """Takes the bytes that were sent."""
        head, _, body = sent.partition(b"\r\n\r\n")
        line, _, fields = head.decode("ascii").partition("\r\n")
        method, path, version = line.split(" ")
        assert version == "HTTP/1.1"
        headers = dict(field.split(": ", 1) for field in fields.split("\r\n"))
        assert int(headers.get("Content-Length", 0)) == len(body)
        self.used.extend(name for verb, pattern, name in self._operations if verb == method and pattern.fullmatch(path))
        request = MockRequest(
            f"http://{headers['Host']}",
            method.lower(),
            unquote(path),
            headers=headers,
            data=body or None,
            content_type=headers.get("Content-Type", ""),
        )
        self._check("request", line, lambda: self._at(request).validate_request(request))
        return request

    def check_answer(self, request: MockRequest, sent: float, answer: Answer) -> None:
        """Takes the answer to a request of that time."""
        if answer.status == 200 and answer.body.startswith(b'{"lease"'):
            lease = json.loads(answer.body)
            self.expires[lease["lease"]] = sent + lease.get("expires_in_seconds", 0)
        response = MockResponse(answer.body, answer.status, content_type=answer.content_type)
        name = f"{request.method} {request.path}: {answer.status} {answer.body.decode()}"
        self._check("answer", name, lambda: self._at(request).validate_response(request, response))

    def _at(self, request: MockRequest) -> OpenAPI:
        return self._unix if request.host_url == "http://slotkeeper" else self._loopback

    def _check(self, what: str, name: str, check: Any) -> None:  # noqa: ANN401
        try:
            check()
        except Exception as error:
            self.faults.append(f"{what} {name}: {error!r}, by {error.__cause__!r}")


def operations(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    """The name, the method and the path of each operation of a document."""
    return {
        (str(operation["operationId"]), method, path)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def fetch(address: str) -> dict[str, Any]:
    """The document of an agent. It needs no token."""
    return Wire(address, None).ask(Request("GET", "/v1/openapi.json"), _clock.now() + 10).content()
