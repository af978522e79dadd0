"""Validation of client requests: each error message has the field, its value and the allowed values."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePosixPath
from signal import Signals

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX
from gavelpy.model.job import GPUS_MAX, SIGNAL_MAX, JobId, JobSpec
from gavelpy.model.software import Software
from gavelpy.runtime.daemon.job_history import NAMELESS
from gavelpy.runtime.daemon.queries.fields import number, require, shown, text
from gavelpy.runtime.wire import client_pb2, software_pb2

NAME = re.compile(r"(?![0-9]+\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_ALLOWED = "1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit, and not a number"
KEY = re.compile(r"[\x21-\x7e]{1,128}")
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUOTING = re.compile(r"['\"\\]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = "GAVEL_"  # variables of the runtime
COMMAND_CHARACTERS_MAX = 65_536
PATH_CHARACTERS_MAX = 4_096
TYPES_MAX = 64
VARIABLES_MAX = 256
ENVIRONMENT_CHARACTERS_MAX = 131_072
_NOT_FOR_WARNINGS = (Signals.SIGKILL, Signals.SIGSTOP)
_SIGNAL_ALLOWED = f"a number in [0, {SIGNAL_MAX}] other than {', '.join(map(str, map(int, _NOT_FOR_WARNINGS)))}"


class JobReader:
    """Reads the jobs of one request; descriptions that differ in their name only are validated once."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._names: set[str] = set()
        self._known: dict[bytes, JobSpec] = {}  # by description without name

    def spec(self, field: str, job: client_pb2.JobDescription) -> JobSpec:
        """The job of a description; its id is its name. `field`: name of the description in error messages."""
        name = job.name
        if name:
            require(bool(NAME.fullmatch(name)), f"{field}.name", NAME_ALLOWED, name)
            nameless = client_pb2.JobDescription()
            nameless.CopyFrom(job)
            nameless.ClearField("name")
            job = nameless
        description = job.SerializeToString(deterministic=True)
        known = self._known.get(description)
        if known is None:
            known = self._known[description] = _job_spec(field, job, self._owner)
        if not name:
            return known
        require(name not in self._names, f"{field}.name", "unique among the jobs of a request", name)
        self._names.add(name)
        return known.renamed(JobId(name), self._owner)


def _job_spec(field: str, job: client_pb2.JobDescription, owner: str) -> JobSpec:
    """The job of a description without a name."""
    require(job.gpus <= GPUS_MAX, f"{field}.gpus", f"a whole number in [1, {GPUS_MAX}]", job.gpus)
    return JobSpec(
        id=JobId(NAMELESS),
        steps_total=number(f"{field}.steps_total", job.steps_total, above=True),
        gpus=job.gpus or 1,
        weight=number(f"{field}.weight", job.weight or 1.0, above=True),
        job_type=text(f"{field}.job_type", job.job_type),
        rates_steps_per_s=_rates(f"{field}.rates_steps_per_s", job.rates_steps_per_s),
        deadline_s=number(f"{field}.deadline_s", job.deadline_s) or math.inf,
        entity=text(f"{field}.entity", job.entity),
        command=_command(f"{field}.command", job.command),
        working_directory=_directory(f"{field}.working_directory", job.working_directory),
        owner=owner,
        environment=_environment(f"{field}.environment", job.environment),
        one_process_a_node=job.one_process_a_node,
        checkpoint_every_s=number(f"{field}.checkpoint_every_s", job.checkpoint_every_s),
        warning_s=number(f"{field}.warning_s", job.warning_s),
        preemptible=job.preemptible,
        software=_software(f"{field}.software", job.software),
        hold=job.hold,
        time_s=number(f"{field}.time_s", job.time_s),
        stall_s=number(f"{field}.stall_s", job.stall_s),
        gpu_types=_gpu_types(f"{field}.gpu_types", job),
        begin_at_s=number(f"{field}.begin_at_s", job.begin_at_s),
        warning_signal=_signal(f"{field}.warning_signal", job.warning_signal, job.warning_s),
    )


def _rates(field: str, rates: Mapping[str, float]) -> dict[str, float]:
    if len(rates) > TYPES_MAX:
        require(False, field, f"of at most {TYPES_MAX} GPU types", f"{len(rates)} types")
    for gpu_type, rate in rates.items():
        require(bool(_GPU_TYPE.fullmatch(gpu_type)), field, "keyed by names of GPU types", gpu_type)
        if not 0 <= rate <= VALUE_MAX:
            number(f"{field}[{gpu_type!r}]", rate)
    return dict(sorted(rates.items()))


def _gpu_types(field: str, job: client_pb2.JobDescription) -> tuple[str, ...]:
    require(len(job.gpu_types) <= TYPES_MAX, field, f"at most {TYPES_MAX} GPU types", len(job.gpu_types))
    for name in job.gpu_types:
        require(bool(_GPU_TYPE.fullmatch(name)), field, "names of GPU types", name)
    if job.gpu_types and job.rates_steps_per_s and not any(job.rates_steps_per_s.get(name) for name in job.gpu_types):
        require(False, field, "a type for which the job has a rate", "|".join(job.gpu_types))
    return tuple(dict.fromkeys(job.gpu_types))


def _command(field: str, command: str) -> str:
    plain = command.replace("\n", "").replace("\t", "")
    if not 0 < len(command) <= COMMAND_CHARACTERS_MAX or not plain.isprintable():
        require(False, field, f"1 to {COMMAND_CHARACTERS_MAX} characters without control characters", command)
    if not _QUOTING.search(command):  # most commands; the real reader is slow
        require(bool(command.split()), field, "a program and its arguments", command)
        return command
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput(f"{field} must be quoted as for a shell ({error}), got {shown(command)}") from None
    require(bool(words and words[0]), field, "a program and its arguments", command)
    return command


def _directory(field: str, directory: str) -> str:
    text(field, directory, characters_max=PATH_CHARACTERS_MAX)
    require(not directory or PurePosixPath(directory).is_absolute(), field, "an absolute path, or empty", directory)
    return directory


def _software(field: str, given: software_pb2.Software) -> Software:
    try:
        return Software(**{part.name: getattr(given, part.name) for part in fields(Software)})
    except InvalidInput as error:
        raise InvalidInput(f"{field}.{error}") from None


def _environment(field: str, environment: Mapping[str, str]) -> dict[str, str]:
    require(len(environment) <= VARIABLES_MAX, field, f"at most {VARIABLES_MAX} variables", len(environment))
    size = sum(len(name) + len(value) for name, value in environment.items())
    require(size <= ENVIRONMENT_CHARACTERS_MAX, field, f"at most {ENVIRONMENT_CHARACTERS_MAX} characters", size)
    for name, value in environment.items():
        require(bool(_VARIABLE.fullmatch(name)), field, "keyed by letters, digits and '_', no digit first", name)
        allowed = f"keyed by names that do not begin with {_RESERVED}"
        require(not name.startswith(_RESERVED), field, allowed, name)
        require("\0" not in value, f"{field}[{name!r}]", "without NUL", value)
    return dict(sorted(environment.items()))


def _signal(field: str, signal: int, warning_s: float) -> int:
    require(0 <= signal <= SIGNAL_MAX and signal not in _NOT_FOR_WARNINGS, field, _SIGNAL_ALLOWED, signal)
    require(bool(signal) == bool(warning_s), field, "given together with warning_s", signal)
    return signal
