"""The exception that refuses a call with a gRPC status."""

from __future__ import annotations

import grpc

from gavelpy.errors import GavelError


class Refusal(GavelError):
    """Refuses a call: a gRPC status and a message."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
