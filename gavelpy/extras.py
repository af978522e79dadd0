"""Optional dependencies: which extra of the package provides a module that is not installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

from gavelpy.errors import InvalidInput

EXTRA_OF: Final = {
    **dict.fromkeys(
        ("grpc", "grpc_health", "grpc_reflection", "google", "sqlalchemy", "psycopg", "aiohttp", "prometheus_client",
         "pynvml", "re2", "cryptography"),
        "runtime",
    ),
    **dict.fromkeys(("matplotlib", "jinja2"), "report"),
    "torch": "torch",
}  # fmt: skip


def require(what: str, modules: Iterable[str]) -> None:
    """Raises InvalidInput with the `pip install` line if any of these modules, which `what` needs, is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise InvalidInput(_sentence(what, missing))


def missing_extra(error: ModuleNotFoundError, what: str) -> str:
    """The message for a user whose command `what` failed to import a module; raises `error` if no extra provides it."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF:
        raise error
    return _sentence(what, [module])


def _sentence(what: str, modules: list[str]) -> str:
    extras = ",".join(sorted({EXTRA_OF[module] for module in modules}))
    return f"{what} needs {' and '.join(modules)}, not installed: pip install 'gavelpy[{extras}]'"
