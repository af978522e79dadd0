"""A call that is refused, with the status it is answered by."""

from __future__ import annotations

import grpc

from gavelpy.errors import GavelError


class Refusal(GavelError):
    """The answer to a call is no: a gRPC status and one sentence."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
