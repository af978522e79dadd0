"""Identifier types. A serial is a row number that is never reused; an id is a name given by a user."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
JobSerial = NewType("JobSerial", int)
