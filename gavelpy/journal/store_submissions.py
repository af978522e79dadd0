"""What a submission was answered with, for whoever asks again by the same key."""

from __future__ import annotations

from dataclasses import dataclass

from gavelpy.errors import InvalidInput
from gavelpy.journal.store_rows import SubmissionRow


@dataclass(frozen=True)
class Submission:
    """What a submission was answered with: its repetition, by owner and key, gets the same."""

    owner: str
    key: str
    digest: str  # of what was asked for; comparing it is the caller's matter
    first_job: int
    count: int
    at_s: float


def submission_row(submission: Submission, sequence: int) -> SubmissionRow:
    """The row of an answer that comes with the append that ends at a sequence; raises InvalidInput."""
    texts = {name: storable(name, getattr(submission, name)) for name in ("owner", "key", "digest")}
    numbers = (int(submission.first_job), int(submission.count), float(submission.at_s))
    row = SubmissionRow(**texts, first_job=numbers[0], jobs=numbers[1], at_s=numbers[2], sequence=sequence, crc32=0)
    return row._replace(crc32=row.checksum())


def storable(name: str, value: str) -> str:
    """A text that both databases keep as it is."""
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidInput(f"{name} must be text without NUL and lone surrogates, got {value!r}")
    return value
