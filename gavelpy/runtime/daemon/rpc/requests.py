"""Validation of client requests: each error message has the field, its value and the allowed values."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePosixPath
from signal import Signals

import numpy as np

from gavelpy.errors import InvalidInput, NotFound
from gavelpy.model.apps import AppRole
from gavelpy.model.arrays import VALUE_MAX
from gavelpy.model.completion_value import CompletionValue, text_of
from gavelpy.model.job import (
    GPUS_MAX,
    NODES_MAX,
    SIGNAL_MAX,
    JobId,
    JobKind,
    JobSpec,
    assumed_steps,
)
from gavelpy.model.job_sizes import PLAN_MAX, SIZES_MAX, RatesBySize, rates_by_efficiency
from gavelpy.model.notify import Notify
from gavelpy.model.software import OF_SYSTEM, Software
from gavelpy.runtime.daemon.job_history import NAMELESS
from gavelpy.runtime.daemon.queries.fields import number, require, shown, text
from gavelpy.runtime.security.tokens import NODE_ID
from gavelpy.runtime.wire import client_pb2

NAME = re.compile(r"(?![0-9]+\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_ALLOWED = "1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit, and not a number"
KEY = re.compile(r"[\x21-\x7e]{1,128}")
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUOTING = re.compile(r"['\"\\]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = "GAVEL_"  # variables of the runtime
# Variables that each node sets for each job: a secret would have no effect on them.
_OF_NODE = re.compile(
    r"PATH|LANG|HOME|USER|LOGNAME|SHELL|TMPDIR|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV|PYTHONUNBUFFERED"
    r"|(?:LOCAL_|ROLE_|GROUP_)?RANK|(?:LOCAL_|ROLE_|GROUP_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)"
    r"|CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER)|HIP_VISIBLE_DEVICES|(?:TORCHELASTIC|PET)_.*"
)
COMMAND_CHARACTERS_MAX = 65_536
APP_CHARACTERS_MAX = 4_096
PATH_CHARACTERS_MAX = 4_096
TYPES_MAX = 64
VARIABLES_MAX = 256
ENVIRONMENT_CHARACTERS_MAX = 131_072
_NOT_FOR_WARNINGS = (Signals.SIGKILL, Signals.SIGSTOP)
_SIGNAL_ALLOWED = f"a number in [0, {SIGNAL_MAX}] other than {', '.join(map(str, map(int, _NOT_FOR_WARNINGS)))}"


class JobReader:
    """Reads the jobs of one request, in order.

    Descriptions that differ only in their name, their place in an array and the jobs that they come after are validated
    once. `names`: of all jobs of the request. `find`: the serial of a job of the caller by number or name.
    """

    def __init__(self, owner: str, names: Collection[str], find: Callable[[str], int]) -> None:
        self._owner, self._all_names, self._find = owner, frozenset(names), find
        self._count = 0
        self._names: dict[str, int] = {}  # of the jobs so far: their rows in the request
        self._known: dict[bytes, JobSpec] = {}  # by description without name

    def spec(self, field: str, job: client_pb2.JobDescription) -> JobSpec:
        """The job of a description; its id is its name. `field`: name of the description in error messages."""
        name, after, position, row = job.name, list(job.after), job.array_position, self._count
        self._count += 1
        if name or after or position:
            require(not name or bool(NAME.fullmatch(name)), f"{field}.name", NAME_ALLOWED, name)
            plain = client_pb2.JobDescription()
            plain.CopyFrom(job)
            for own in ("name", "after", "array_position"):
                plain.ClearField(own)
            job = plain
        description = job.SerializeToString(deterministic=True)
        known = self._known.get(description)
        if known is None:
            known = self._known[description] = _job_spec(field, job, self._owner)
        if after or position:
            known = known.ordered(*self._after(f"{field}.after", after, row), position)
        if not name:
            return known
        require(name not in self._names, f"{field}.name", "unique among the jobs of a request", name)
        self._names[name] = row
        return known.renamed(JobId(name), self._owner)

    def _after(self, field: str, texts: Sequence[str], row: int) -> tuple[list[int], list[int]]:
        """Serials of the jobs to finish first, and of those to be over first; -n = the n-th before this one."""
        found: dict[str, list[int]] = {"ok": [], "any": []}
        for given in texts:
            name, _, how = given.partition(":")
            require(how in ("", *found), field, "NUMBER or NAME of a job, with :ok or :any", given)
            found[how or "ok"].append(self._serial(field, name, row))
        require(len({*found["ok"], *found["any"]}) == len(texts), field, "names of different jobs", ", ".join(texts))
        return found["ok"], found["any"]

    def _serial(self, field: str, name: str, row: int) -> int:
        if name in self._names:
            return self._names[name] - row
        require(name not in self._all_names, field, "names of jobs further up in the same request, or older ones", name)
        try:
            return self._find(name)
        except NotFound:
            allowed = "numbers or names of your jobs that were submitted before, or are further up in the file"
            raise InvalidInput(f"{field} must be {allowed}, got {shown(name)}") from None


def _job_spec(field: str, job: client_pb2.JobDescription, owner: str) -> JobSpec:
    """The job of a description without a name."""
    require(job.gpus <= GPUS_MAX, f"{field}.gpus", f"a whole number in [1, {GPUS_MAX}]", job.gpus)
    rates = _rates(f"{field}.rates_steps_per_s", job.rates_steps_per_s)
    sizes = _sizes(field, job)
    return JobSpec(
        id=JobId(NAMELESS),
        steps_total=number(f"{field}.steps_total", job.steps_total) or assumed_steps(rates),
        open_ended=not job.steps_total,
        gpus=job.gpus or 1,
        sizes=sizes,
        rates_by_size=_rates_by_size(field, job, sizes, rates),
        weight=number(f"{field}.weight", job.weight or 1.0, above=True),
        job_type=text(f"{field}.job_type", job.job_type),
        rates_steps_per_s=rates,
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
        kind=JobKind.INTERACTIVE if job.interactive else JobKind.BATCH,
        software=_software(f"{field}.software", job),
        notify=_notify(f"{field}.notify", job.notify),
        secrets=_secrets(f"{field}.secrets", job.secrets, job.environment),
        no_preempt=job.no_preempt or job.interactive,
        array_size=job.array_size,
        array_limit=job.array_limit,
        hold=job.hold,
        priority=text(f"{field}.priority", job.priority),
        time_s=number(f"{field}.time_s", job.time_s),
        stall_s=number(f"{field}.stall_s", job.stall_s),
        gpu_memory_gib=number(f"{field}.gpu_memory_gib", job.gpu_memory_gib),
        cpus_per_gpu=number(f"{field}.cpus_per_gpu", job.cpus_per_gpu),
        plans=_plans(f"{field}.plans", job, sizes),
        completion_value=_completion_value(f"{field}.completion_value", job.completion_value),
        app=_app(f"{field}.app", job.app),
        memory_gib_per_gpu=number(f"{field}.memory_gib_per_gpu", job.memory_gib_per_gpu),
        gpu_types=_gpu_types(f"{field}.gpu_types", job),
        nodes=_nodes(f"{field}.nodes", job.nodes),
        exclude=_nodes(f"{field}.exclude", job.exclude),
        reservation=text(f"{field}.reservation", job.reservation),
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


def _sizes(field: str, job: client_pb2.JobDescription) -> tuple[int, ...]:
    sizes, gpus, field = tuple(job.sizes), job.gpus or 1, f"{field}.sizes"
    if sizes:
        require(len(sizes) <= SIZES_MAX, field, f"at most {SIZES_MAX} numbers of GPUs", len(sizes))
        require(all(1 <= size <= GPUS_MAX for size in sizes), field, f"whole numbers in [1, {GPUS_MAX}]", list(sizes))
        require(
            len(set(sizes)) == len(sizes) and gpus in sizes, field, f"different numbers, {gpus} among them", list(sizes)
        )
        require(not job.interactive, field, "empty for an interactive job", list(sizes))
    return sizes


def _rates_by_size(
    field: str, job: client_pb2.JobDescription, sizes: Sequence[int], rates: Mapping[str, float]
) -> RatesBySize:
    gpus, found = job.gpus or 1, dict[int, Mapping[str, float]]()
    others = f"keyed by sizes other than {gpus}, which are {[size for size in sizes if size != gpus] or 'none'}"
    for size, given in job.rates_by_size.items():
        require(size in sizes and size != gpus, f"{field}.rates_by_size", others, size)
        found[size] = _rates(f"{field}.rates_by_size[{size}]", given.rates_steps_per_s)
    for size, value in job.efficiency.items():
        require(size in sizes and size != gpus, f"{field}.efficiency", others, size)
        require(not found.get(size), f"{field}.efficiency", "of sizes without rates_by_size", size)
        require(bool(rates), f"{field}.efficiency", "given together with rates_steps_per_s", dict(job.efficiency))
        number(f"{field}.efficiency[{size}]", value, above=True)
    for size, its_rates in rates_by_efficiency(gpus, rates, job.efficiency).items():
        found[size] = _rates(f"{field}.efficiency[{size}]", its_rates)
    return found


def _plans(field: str, job: client_pb2.JobDescription, sizes: Sequence[int]) -> dict[int, str]:
    gpus = tuple(sizes) or (job.gpus or 1,)
    for size, plan in job.plans.items():
        require(size in gpus, field, f"keyed by numbers of GPUs of the job ({', '.join(map(str, gpus))})", size)
        text(f"{field}[{size}]", plan, characters_max=PLAN_MAX)
        require(bool(plan), f"{field}[{size}]", "a text", plan)
    return dict(job.plans)


def _completion_value(field: str, value: str) -> str:
    try:
        return text_of(np.array(CompletionValue.parse(value).row)) if value else ""
    except InvalidInput as error:
        raise InvalidInput(f"{field}: {error}") from None


def _app(field: str, role: str) -> str:
    require(len(role) <= APP_CHARACTERS_MAX, field, f"at most {APP_CHARACTERS_MAX} characters", len(role))
    try:
        return AppRole.parse(role).text if role else ""
    except InvalidInput as error:
        raise InvalidInput(f"{field}: {error}") from None


def _gpu_types(field: str, job: client_pb2.JobDescription) -> tuple[str, ...]:
    require(len(job.gpu_types) <= TYPES_MAX, field, f"at most {TYPES_MAX} GPU types", len(job.gpu_types))
    for name in job.gpu_types:
        require(bool(_GPU_TYPE.fullmatch(name)), field, "names of GPU types", name)
    if job.gpu_types and job.rates_steps_per_s and not any(job.rates_steps_per_s.get(name) for name in job.gpu_types):
        require(False, field, "a type for which the job has a rate", "|".join(job.gpu_types))
    return tuple(dict.fromkeys(job.gpu_types))


def _nodes(field: str, names: Sequence[str]) -> tuple[str, ...]:
    require(len(names) <= NODES_MAX, field, f"at most {NODES_MAX} nodes", len(names))
    for name in names:
        require(bool(NODE_ID.fullmatch(name)), field, "names of nodes", name)
    return tuple(dict.fromkeys(names))


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


def _notify(field: str, given: client_pb2.Notify) -> Notify:
    try:
        return Notify(tuple(given.kinds), given.webhook, given.mail)
    except InvalidInput as error:
        raise InvalidInput(f"{field}: {error}") from None


def _software(field: str, job: client_pb2.JobDescription) -> Software:
    given = job.software
    if given.image:
        where = str(PurePosixPath(job.working_directory)) if job.working_directory else ""
        is_own = bool(where) and where not in OF_SYSTEM
        require(is_own, f"{field}.working_directory", "a directory that hides nothing of the image", where)
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


def _secrets(field: str, secrets: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    require(len(secrets) <= VARIABLES_MAX, field, f"at most {VARIABLES_MAX} variables", len(secrets))
    for variable, name in secrets.items():
        require(
            bool(_VARIABLE.fullmatch(variable)), field, "keyed by letters, digits and '_', no digit first", variable
        )
        require(
            bool(_VARIABLE.fullmatch(name)), f"{field}[{variable!r}]", "letters, digits and '_', no digit first", name
        )
        require(
            not variable.startswith(_RESERVED), field, f"keyed by names that do not begin with {_RESERVED}", variable
        )
        require(not _OF_NODE.fullmatch(variable), field, "keyed by variables that the node does not set", variable)
        require(variable not in environment, field, "variables that are not in environment, too", variable)
    return dict(sorted(secrets.items()))


def _signal(field: str, signal: int, warning_s: float) -> int:
    require(0 <= signal <= SIGNAL_MAX and signal not in _NOT_FOR_WARNINGS, field, _SIGNAL_ALLOWED, signal)
    require(bool(signal) == bool(warning_s), field, "given together with warning_s", signal)
    return signal
