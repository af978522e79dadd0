"""Policies in Python files, by the name FILE.py:CLASS: for a policy that is not in an installed package.

The file is executed, so its name must come from the user of the process: the command line, or the configuration of the
scheduler. Names that clients of the scheduler send are not read as files.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput

_NAME = re.compile(r"(?P<file>.+?\.py)(?::(?P<name>[^:=]*))?(?::(?P<parameters>.*))?")
_ATTRIBUTES = ("name", "summary", "fills_leftover", "allocate")
# What a file with a mistake raises while it is executed; anything else is shown with its traceback.
_MISTAKES = (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError)


def is_in_file(name: str) -> bool:
    """Whether a policy's name is that of a class in a file.

    >>> is_in_file("./mine.py:Greedy"), is_in_file("fifo")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None


def split_name(text: str) -> tuple[str, str]:
    """The name FILE.py:CLASS and the parameters of FILE.py:CLASS:parameter=value:...

    >>> split_name("./mine.py:Greedy:least=0.5")
    ('./mine.py:Greedy', 'least=0.5')
    """
    parts = _NAME.fullmatch(text)
    if parts is None or not (parts["name"] or "").isidentifier():
        raise InvalidInput(f"a policy in a file must look like FILE.py:CLASS:parameter=value, got {text!r}")
    return f"{parts['file']}:{parts['name']}", parts["parameters"] or ""


def class_in_file(name: str) -> type[Any]:  # Any: a class of the user's
    """The class FILE.py:CLASS, with the attributes of a policy. Raises InvalidInput with the file and its line."""
    place, _, class_name = split_name(name)[0].rpartition(":")
    path = Path(place).resolve()
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise InvalidInput(f"the file of policy {name!r} cannot be read: {error.strerror}", file=place) from None
    found = _executed(path, changed_ns).get(class_name)
    if not isinstance(found, type):
        raise InvalidInput(f"the file of policy {name!r} must define the class {class_name}", file=place)
    if missing := [each for each in _ATTRIBUTES if not hasattr(found, each)]:
        raise InvalidInput(f"policy {name!r} must have {', '.join(_ATTRIBUTES)}, but lacks {', '.join(missing)}")
    return found


@cache
def _executed(path: Path, changed_ns: int) -> dict[str, Any]:
    """What the file defines, executed once for each version of it."""
    digest = hashlib.sha256(f"{path}\n{changed_ns}".encode()).hexdigest()[:16]
    spec = spec_from_file_location(f"gavelpy_policy_file_{digest}", path)
    assert spec is not None, f"{path} ends in .py"
    assert spec.loader is not None, f"{path} ends in .py"
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise InvalidInput(f"the file of a policy cannot be read: {error.strerror}", file=str(path)) from None
    except _MISTAKES as error:
        del sys.modules[spec.name]
        line = error.lineno or 0 if isinstance(error, SyntaxError) else _line_in(path, error)
        raise InvalidInput(
            f"the file of a policy must be Python that can be imported: {type(error).__name__}: {error}",
            file=str(path),
            line=line,
        ) from error
    return vars(module)


def _line_in(path: Path, error: BaseException) -> int:
    """The last line of this file that was executed; 0 = none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == str(path)), 0)
