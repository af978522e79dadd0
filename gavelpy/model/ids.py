"""Names of things. A serial is a row number that is never reused; an id is what a person typed."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
JobSerial = NewType("JobSerial", int)
