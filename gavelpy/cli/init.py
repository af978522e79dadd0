"""`gavel init`: proposes the lines that a plain PyTorch training loop needs to save and resume under leases.

The script is read, not run. What cannot be recognised with certainty is refused, with its line and a hint.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from gavelpy.cli import options as o
from gavelpy.cli.output import notify
from gavelpy.errors import InvalidInput

_BYTES_MAX: Final = 1 << 20
_FRAMEWORKS: Final = {"lightning", "pytorch_lightning", "transformers", "accelerate"}
_ORDER_OPTIONS: Final = {"sampler", "batch_sampler", "generator"}


def init(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="The training script.")],
    write: Annotated[
        bool, typer.Option("--write", help="Change the script; the old one is kept as SCRIPT.py.bak.")
    ] = False,
    job: Annotated[bool, typer.Option("--job", help="Write SCRIPT.toml, a job file.")] = False,
    steps: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=o.number(1e-9),
            help="Total training steps, for the job file. Default: those that the program announces.",
        ),
    ] = None,
) -> None:
    """Propose the lines that a plain training loop needs: import, checkpoint, loop over a LeaseIterator.

    \b
    Examples:
      gavel init train.py
      gavel init train.py --write
      gavel init train.py --write --job --steps 10000
    """
    if steps is not None and not job:
        raise InvalidInput("--steps needs --job: only a job file has a number of steps")
    old = _read(script)
    new = with_lease(old, str(script))
    backup, job_file = script.with_name(f"{script.name}.bak"), script.with_suffix(".toml")
    for path in [*([backup] if write else []), *([job_file] if job else [])]:
        if path.exists():
            raise InvalidInput(f"{path} exists already: remove it first")
    names = (str(script), str(script))
    typer.echo("".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names)), nl=False)
    if write:
        backup.write_text(old, encoding="utf-8")
        script.write_text(new, encoding="utf-8")
        notify(f"changed {script}; the old one is {backup}")
    else:
        notify("nothing was changed: gavel init --write does it")
    if job:
        total = f"steps_total = {steps:g}\n" if steps is not None else ""
        text = f'[[job]]\nname = "{script.stem}"\ncommand = ["python", "{script.name}"]\n{total}'
        job_file.write_text(text, encoding="utf-8")
        notify(f"wrote {job_file}: gavel submit {job_file}")


@dataclass(frozen=True)
class _Edit:
    """Text to put in the place of a span; offsets count bytes."""

    begins: int
    ends: int
    text: str


def with_lease(source: str, file: str = "") -> str:
    """The script with its loop under leases; raises InvalidInput, with the line, for what is not recognised."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise InvalidInput(f"script must be Python: {error.msg}", file=file, line=error.lineno or 1) from None
    script = _Script(source, file, tree)
    script.refuse_imports()
    inner = script.training_loop()
    outer = script.epoch_loop(inner)
    return script.edited([*script.loader_edits(inner), *script.loop_edits(inner, outer), script.imports(inner)])


class _Script:
    """A parsed script: what its loop consists of, and the edits."""

    def __init__(self, source: str, file: str, tree: ast.Module) -> None:
        self._bytes = source.encode()
        self._file = file
        self._tree = tree
        self._parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
        lines = self._bytes.splitlines(True)
        self._starts = [sum(map(len, lines[:row])) for row in range(len(lines) + 1)]

    def refuse_imports(self) -> None:
        """Refuses scripts that need something else."""
        for node in ast.walk(self._tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            roots = {name.partition(".")[0] for name in names}
            if "gavelpy" in roots:
                raise self._error(node, "the script must not use gavelpy yet")
            if found := roots & _FRAMEWORKS:
                raise self._error(node, f"{found.pop()} has its own loop: see docs/frameworks.md for its callback")

    def training_loop(self) -> ast.For:
        """The one loop that calls backward() and step()."""
        loops = [node for node in ast.walk(self._tree) if isinstance(node, ast.For) and _trains(node)]
        innermost = [loop for loop in loops if not any(other in loops for other in _below(loop))]
        if not innermost:
            raise self._error(self._tree, "no for loop that calls backward() and step() was found")
        if len(innermost) > 1:
            lines = ", ".join(str(loop.lineno) for loop in innermost)
            raise self._error(innermost[1], f"one training loop is supported, found several, at lines {lines}")
        loop = innermost[0]
        if loop.orelse:
            raise self._error(loop, "the training loop must have no else: move it after the loop")
        self._refuse_breaks(loop)
        return loop

    def epoch_loop(self, inner: ast.For) -> ast.For | None:
        """The loop over epochs around the training loop; None = there is none."""
        outer = self._parents[inner]
        if isinstance(outer, ast.FunctionDef | ast.Module):
            self._refuse_calls_in_loops(outer)
            return None
        name = outer.iter if isinstance(outer, ast.For) else None
        is_range = isinstance(name, ast.Call) and _name(name.func) == "range" and len(name.args) == 1
        if not isinstance(outer, ast.For) or not is_range:
            raise self._error(outer, "the training loop must be in no block but `for epoch in range(EPOCHS):`")
        self._refuse_breaks(outer)
        if not isinstance(self._parents[outer], ast.FunctionDef | ast.Module):
            raise self._error(outer, "the loop over epochs must be in no other block, only in a function or the module")
        return outer

    def loader_edits(self, inner: ast.For) -> Iterator[_Edit]:
        """Makes the loader a ResumableLoader, so that a resumed run continues in the same order."""
        call = self._loader_call(inner)
        if call is None:
            return
        given = {keyword.arg for keyword in call.keywords}
        if wrong := given & _ORDER_OPTIONS:
            raise self._error(
                call,
                f"DataLoader must not have {wrong.pop()}: ResumableLoader, which replaces it, determines the order",
            )
        if len(call.args) > 2 or (len(call.args) < 2 and "batch_size" not in given):
            raise self._error(call, "DataLoader must have a batch_size, and options with names")
        yield self._replaced(call.func, "ResumableLoader")
        if "shuffle" not in given:
            last = max((*call.args, *(keyword.value for keyword in call.keywords)), key=self._end)
            yield _Edit(self._end(last), self._end(last), ", shuffle=False")

    def loop_edits(self, inner: ast.For, outer: ast.For | None) -> Iterator[_Edit]:
        """The checkpoint and the iterator before the loop, and the loop over the iterator."""
        loop = outer or inner
        loader = self._loader(inner)
        epochs = f", epochs={ast.unparse(outer.iter.args[0])}" if outer and isinstance(outer.iter, ast.Call) else ""
        parts = ", ".join(f"{name}={name}" for name in self._stateful(inner, loop))
        state, batches = self._free("state"), self._free("batches")
        indent = " " * loop.col_offset
        begins = self._starts[loop.lineno - 1]
        yield _Edit(
            begins,
            begins,
            f"{indent}{state} = TrainingState({parts})\n"
            f"{indent}{batches} = LeaseIterator({loader.id}, {state}.save, load={state}.load{epochs})\n",
        )
        yield self._replaced(loader, batches)
        if outer:
            yield self._replaced(outer.iter, f"{batches}.each_epoch()")

    def imports(self, inner: ast.For) -> _Edit:
        """The import lines, after the last import at the top of the script."""
        top = [node for node in self._tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if not top:
            raise self._error(self._tree, "the script must import torch at its top")
        begins = self._starts[top[-1].end_lineno or top[-1].lineno]
        names = "ResumableLoader, TrainingState" if self._loader_call(inner) else "TrainingState"
        return _Edit(begins, begins, f"from gavelpy import LeaseIterator\nfrom gavelpy.torch import {names}\n")

    def edited(self, edits: Iterable[_Edit]) -> str:
        """The source with all edits."""
        content = self._bytes
        for edit in sorted(edits, key=lambda edit: edit.begins, reverse=True):
            content = content[: edit.begins] + edit.text.encode() + content[edit.ends :]
        return content.decode()

    def _loader(self, inner: ast.For) -> ast.Name:
        """The name of the loader: `loader`, `enumerate(loader)` or `tqdm(loader)`."""
        found = inner.iter
        if isinstance(found, ast.Call) and _name(found.func) in ("enumerate", "tqdm") and found.args:
            found = found.args[0]
        if not isinstance(found, ast.Name):
            raise self._error(inner, "the training loop must be over a name: assign the loader to a variable first")
        return found

    def _loader_call(self, inner: ast.For) -> ast.Call | None:
        name = self._loader(inner).id
        for node in ast.walk(self._tree):
            is_own = isinstance(node, ast.Assign) and name in map(_name, node.targets)
            if is_own and isinstance(node.value, ast.Call) and _name(node.value.func) == "DataLoader":  # type: ignore[attr-defined]  # is_own
                return node.value  # type: ignore[attr-defined]
        return None

    def _stateful(self, inner: ast.For, loop: ast.For) -> list[str]:
        """Names with a state: models (`parameters`), optimizers, schedulers and scalers (`step`)."""
        scope = self._scope(loop)
        nodes = sorted(ast.walk(self._tree), key=lambda node: getattr(node, "lineno", 0))
        calls = [(node, owner) for node in nodes if (owner := _owner(node)) and self._scope(node) is scope]
        models = [owner for node, owner in calls if node.func.attr == "parameters"]  # type: ignore[attr-defined]  # of _owner
        steppers = [owner for node, owner in calls if node.func.attr == "step" and loop in self._above(node)]  # type: ignore[attr-defined]
        if not models:
            raise self._error(
                inner, "no model was found: MODEL.parameters() must be called in the same function as the loop"
            )
        return list(dict.fromkeys([*models, *steppers]))

    def _refuse_breaks(self, loop: ast.For) -> None:
        for node in _below(loop):
            if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and self._loop_of(node) is loop):
                raise self._error(node, "the loop must not end early: call batches.finish() and adapt the loop by hand")

    def _refuse_calls_in_loops(self, scope: ast.FunctionDef | ast.Module) -> None:
        """A function that is called for each epoch would make an iterator each time."""
        name = scope.name if isinstance(scope, ast.FunctionDef) else ""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and name and _name(node.func) == name and self._loop_of(node):
                raise self._error(
                    node, f"{name}() must not be called in a loop: move its loop into the loop over epochs"
                )

    def _free(self, name: str) -> str:
        """A variable name that the script does not use."""
        used = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        while name in used:
            name = f"lease_{name}"
        return name

    def _loop_of(self, node: ast.AST) -> ast.AST | None:
        return next((above for above in self._above(node) if isinstance(above, ast.For | ast.While)), None)

    def _scope(self, node: ast.AST) -> ast.AST:
        return next(above for above in self._above(node) if isinstance(above, ast.FunctionDef | ast.Module))

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._parents:
            node = self._parents[node]
            yield node

    def _replaced(self, node: ast.expr, text: str) -> _Edit:
        return _Edit(self._starts[node.lineno - 1] + node.col_offset, self._end(node), text)

    def _end(self, node: ast.expr) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def _error(self, node: ast.AST, problem: str) -> InvalidInput:
        return InvalidInput(problem, file=self._file, line=getattr(node, "lineno", 1))


def _trains(loop: ast.For) -> bool:
    methods = {
        node.func.attr for node in _below(loop) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return {"backward", "step"} <= methods


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes within a node, except those of functions defined there."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _below(child)


def _name(node: ast.expr) -> str:
    """The last part of a name: DataLoader of torch.utils.data.DataLoader."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _owner(node: ast.AST) -> str:
    """The variable of a method call; empty for other nodes."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.value.id if is_call and isinstance(node.func.value, ast.Name) else ""  # type: ignore[attr-defined]  # is_call


def _read(script: Path) -> str:
    try:
        content = script.read_bytes()
    except OSError as error:
        raise InvalidInput(f"script cannot be read ({error.strerror})", file=str(script)) from None
    if len(content) > _BYTES_MAX:
        raise InvalidInput(f"script must have at most {_BYTES_MAX >> 20} MiB", file=str(script))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"script must be UTF-8: {error}", file=str(script)) from None
