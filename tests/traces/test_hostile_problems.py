"""Each field of a problem file with each hostile value: accepted, or one error that names the file and the value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.traces.problem_json import parse_limited_problem

PROBLEM: dict[str, Any] = {
    "cluster": {"v100": 4, "k80": 2},
    "prices_usd_per_gpu_h": {"v100": 1.0},
    "resources": {"cpu": {"v100": 32}},
    "entities": [{"id": "t", "weight": 1.0, "quota": {"v100": 3}, "guaranteed": {"v100": 1}}],
    "jobs": [
        {
            "id": "a",
            "rates_steps_per_s": {"v100": 1.0, "k80": 0.5},
            "gpus": 1,
            "weight": 1.0,
            "steps_remaining": 5.0,
            "steps_total": 10.0,
            "age_s": 0.0,
            "deadline_s": 3.0,
            "entity": "t",
            "isolated_s": 0.0,
            "attained_gpu_s": 0.0,
            "restart_s": 0.0,
            "gpu_type_held": "v100",
            "gpus_held": 1.0,
            "losses": [[1.0, 2.0], [2.0, 1.0]],
            "demand": {"cpu": 2.0},
            "demand_per_gpu": {"cpu": 1.0},
            "completion_value": "",
            "sizes": [
                {"gpus": 2, "rates_steps_per_s": {"v100": 1.8}, "demand": {"cpu": 2}},
                {"gpus": 3, "efficiency": 1},
            ],
        },
        {"id": "b", "rates_steps_per_s": {"v100": 1.0}},
    ],
    "pairs": [{"jobs": ["a", "b"], "rates_steps_per_s": {"v100": [0.5, 0.5]}}],
}
VALUES = (
    "NaN",
    "-Infinity",
    "1e400",
    "-1",
    '"x"',
    "null",
    "true",
    "{}",
    "[[1]]",
    "1" + "0" * 30,
    "1" + "0" * 400,
    "1e308",
)
INTERNAL = re.compile(r"[A-Z]\w+\(|np\.|array\(|<class|\n|member_")  # a repr or a field of the code in a message


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values inside `value`."""
    steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield (*path, step)
        yield from paths(value[step], (*path, step))  # type: ignore[index]


def with_value(path: tuple[str | int, ...], raw: str) -> str:
    """The problem with this JSON text at `path`."""
    document = json.loads(json.dumps(PROBLEM))
    within = document
    for step in path[:-1]:
        within = within[step]
    within[path[-1]] = "@"
    return json.dumps(document).replace('"@"', raw)


def complaint(text: str) -> str:
    """What is wrong with the reader's answer to `text`; empty = it is a problem, or an error such as it should be."""
    try:
        parse_limited_problem(text, "p.json")
    except InvalidInput as error:
        message = str(error)
        is_right = message.startswith("p.json") and " must " in message and not INTERNAL.search(message)
        return "" if is_right else message
    return ""


def test_every_field_takes_or_refuses_every_hostile_value() -> None:
    parse_limited_problem(json.dumps(PROBLEM), "p.json")

    complaints = {(path, raw): complaint(with_value(path, raw)) for path in paths(PROBLEM) for raw in VALUES}

    assert len(complaints) > 700
    assert {case: found for case, found in complaints.items() if found} == {}
