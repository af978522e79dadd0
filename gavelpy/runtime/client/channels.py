"""The channels to the schedulers of a cluster, used as one: each call goes to the address that answered last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from gavelpy.runtime.addresses import Turns
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.security.exposure import CONNECT_MS_MAX, channel_credentials

MESSAGE_BYTES_MAX = 64 * 2**20  # a page of 10,000 jobs has a few MB
_PING_MS = 20_000  # a stream that follows must detect that the scheduler's node is down
_PING_MS_OF_SEVERAL = 10_000


class SchedulerChannels(grpc.Channel):
    """One channel for each address, which connects at its first call. `turns` selects the address of the next call."""

    def __init__(self, settings: ClientSettings) -> None:
        self.turns = Turns(settings.scheduler)
        self._channels = {
            address: _channel(settings, address, are_several=self.turns.are_several) for address in self.turns.all
        }

    def unary_unary(self, *method: Any, **options: Any) -> Any:
        """A method with one request and one answer."""
        return self._in_turn(lambda channel: channel.unary_unary(*method, **options))

    def unary_stream(self, *method: Any, **options: Any) -> Any:
        """A method with one request and a stream of answers."""
        return self._in_turn(lambda channel: channel.unary_stream(*method, **options))

    def stream_unary(self, *method: Any, **options: Any) -> Any:
        """A method with a stream of requests and one answer."""
        return self._in_turn(lambda channel: channel.stream_unary(*method, **options))

    def stream_stream(self, *method: Any, **options: Any) -> Any:
        """A method with two streams."""
        return self._in_turn(lambda channel: channel.stream_stream(*method, **options))

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Reports the state of the connection in use."""
        self._channels[self.turns.current].subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """Ends these reports."""
        self._channels[self.turns.current].unsubscribe(callback)

    def close(self) -> None:
        """Closes all connections."""
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> SchedulerChannels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_turn(self, method_of: Callable[[grpc.Channel], Any]) -> _InTurn:
        return _InTurn(self.turns, {address: method_of(channel) for address, channel in self._channels.items()})


class _InTurn:
    """A method of all channels; a call uses the address whose turn it is."""

    def __init__(self, turns: Turns, methods: dict[str, Any]) -> None:
        self._turns, self._methods = turns, methods

    def __call__(self, request: Any, **options: Any) -> Any:
        return self._methods[self._turns.current](request, **options)

    def with_call(self, request: Any, **options: Any) -> Any:
        """The answer, and the call with its metadata."""
        return self._methods[self._turns.current].with_call(request, **options)


def _channel(settings: ClientSettings, address: str, *, are_several: bool) -> grpc.Channel:
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", _PING_MS_OF_SEVERAL if are_several else _PING_MS),
        ("grpc.keepalive_timeout_ms", 5_000 if are_several else 10_000),
    ]
    if not settings.tls_ca:
        return grpc.insecure_channel(address, options)
    credentials = channel_credentials(settings.tls_ca, settings.tls_certificate, settings.tls_key)
    return grpc.secure_channel(address, credentials, options)
