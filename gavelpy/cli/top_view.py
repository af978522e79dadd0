"""The interactive screen of `gavel top`: what a key changes, and the lines of one frame. No terminal, no scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rich.style import Style
from rich.text import Text

from gavelpy.cli.jobs import explanation
from gavelpy.cli.output import DASH, compact, count, duration, enum_name, printable

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

KEYS: Final = "q quit  ↑↓ select  s sort  r reverse  / filter  n nodes  e explain  l logs"
KEYS_NARROW: Final = "q quit ↑↓ move s sort / filter n nodes e explain l logs"
KEYS_OF_TEXT: Final = "q quit  ↑↓ scroll  Esc back"
_SORTS: Final = ("state", "job", "name", "progress", "rate", "owner")
_BOLD, _DIM, _CHOSEN, _HEAD = Style(bold=True), Style(dim=True), Style(reverse=True), Style(bold=True, underline=True)
_STATE_STYLES: Final = {"running": Style(color="green"), "failed": Style(color="red"), "waiting": Style(color="yellow")}
_BAR: Final = 10


@dataclass(frozen=True)
class Frame:
    """What the scheduler answered, and the text of the page that is open."""

    cluster: client_pb2.GetClusterResponse
    nodes: Sequence[client_pb2.NodeStatus]
    jobs: Sequence[client_pb2.Job]
    page: Sequence[str] = ()  # lines of the logs
    detail: client_pb2.GetJobResponse | None = None  # of the job that is explained
    page_of: int = -1  # number of the job of `page` or `detail`
    notice: str = ""


@dataclass(frozen=True)
class TopView:
    """State of the screen. `page`: "" = jobs, else nodes, explain or logs."""

    page: str = ""
    sort: str = _SORTS[0]
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False  # a filter
    selected: int = -1  # number of a job; -1 = the first row
    top: int = 0  # lines of a page before those shown; of logs, after them
    is_over: bool = False

    def after(self, key: str, frame: Frame, height: int) -> TopView:
        """The view after a key: a character, or up, down, page-up, page-down, enter, escape, backspace."""
        if self.is_typing:
            return self._typed(key)
        if key == "q":
            return replace(self, is_over=True)
        if self.page:
            moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -(height - 4), "page-down": height - 4}
            if key in moves:
                step = -moves[key] if self.page == "logs" else moves[key]
                return replace(self, top=max(0, self.top + step))
            return replace(self, page="", top=0) if key in ("escape", "backspace", "left") else self._opened(key, frame)
        if key in ("up", "k", "down", "j", "page-up", "page-down"):
            return self._moved(key, frame, height)
        if key == "s":
            return replace(self, sort=_SORTS[(_SORTS.index(self.sort) + 1) % len(_SORTS)])
        if key == "r":
            return replace(self, is_reversed=not self.is_reversed)
        if key == "/":
            return replace(self, is_typing=True, filter="")
        if key == "escape":
            return replace(self, filter="")
        return self._opened(key, frame)

    def shown(self, frame: Frame) -> list[client_pb2.Job]:
        """The jobs that match the filter, in order."""
        words = self.filter.lower().split()
        found = [job for job in frame.jobs if all(word in _searched(job) for word in words)]
        return sorted(found, key=_ORDER[self.sort], reverse=self.is_reversed)

    def chosen(self, frame: Frame) -> client_pb2.Job | None:
        """The selected job, else the first one; None without jobs."""
        shown = self.shown(frame)
        return next((job for job in shown if job.job == self.selected), shown[0] if shown else None)

    def _typed(self, key: str) -> TopView:
        if key in ("enter", "escape"):
            return replace(self, is_typing=False, filter=self.filter if key == "enter" else "")
        if key == "backspace":
            return replace(self, filter=self.filter[:-1])
        return replace(self, filter=self.filter + key) if len(key) == 1 and key.isprintable() else self

    def _moved(self, key: str, frame: Frame, height: int) -> TopView:
        numbers = [job.job for job in self.shown(frame)]
        if not numbers:
            return self
        step = {"up": -1, "k": -1, "down": 1, "j": 1}.get(key, (height - 8) * (1 if key == "page-down" else -1))
        row = numbers.index(self.selected) if self.selected in numbers else 0
        return replace(self, selected=numbers[min(max(row + step, 0), len(numbers) - 1)])

    def _opened(self, key: str, frame: Frame) -> TopView:
        page = {"n": "nodes", "e": "explain", "enter": "explain", "l": "logs"}.get(key)
        job = self.chosen(frame)
        return replace(self, page=page, top=0, selected=job.job if job else -1) if page else self


def lines(view: TopView, frame: Frame, width: int, height: int) -> list[Text]:
    """Exactly `height` lines of at most `width` characters."""
    head = [*_head(frame, width), Text()]
    body = height - len(head) - 1
    foot = KEYS_OF_TEXT if view.page else KEYS if width > len(KEYS) else KEYS_NARROW
    if view.is_typing:
        foot = f"filter: {view.filter}_  (Enter keeps it, Esc clears it)"
    if view.page == "nodes":
        rows = _scrolled([_titles(_NODE_COLUMNS, width), *_rows(_NODE_COLUMNS, frame.nodes, width)], view.top, body)
    elif view.page:
        found = _page(view, frame, width)
        rows = _scrolled(found, max(0, len(found) - body - view.top) if view.page == "logs" else view.top, body)
    else:
        rows = _jobs(view, frame, width, body)
    drawn = [*head, *rows[:body], *[Text()] * (body - len(rows)), Text(foot, _DIM)]
    for line in drawn:
        line.no_wrap = True
        line.truncate(width)
    return drawn[:height]


def _head(frame: Frame, width: int) -> list[Text]:
    cluster = frame.cluster
    blind = " (blind)" if cluster.blind else ""
    found = [
        Text(printable(f"{cluster.cluster_name}: {cluster.policy}{blind}, round {cluster.round}, "), _BOLD)
        + Text(f"ends in {duration(cluster.round_ends_in_s)}, up {duration(cluster.uptime_s)}"),
        Text(f"jobs: {cluster.jobs_running:,} running, {cluster.jobs_waiting:,} waiting, {cluster.jobs_over:,} over"),
    ]
    found += [Text(printable(text), Style(color="yellow")) for text in (frame.notice, cluster.warning) if text]
    size = max((len(kind.gpu_type) for kind in cluster.types), default=0)
    room = max(10, min(40, width - size - 40))
    for kind in cluster.types:
        used = kind.gpus_in_use / kind.gpus if kind.gpus else 0.0
        line = Text(f"{printable(kind.gpu_type):<{size}} ") + bar(used, room)
        found.append(line + Text(f" {kind.gpus_in_use:,}/{kind.gpus:,} GPUs, marginal value {compact(kind.price)}"))
    return found


def bar(part: float, size: int) -> Text:
    """A bar of `size` characters, filled to `part` (0 to 1)."""
    filled = round(min(max(part, 0.0), 1.0) * size)
    return Text("█" * filled, Style(color="green")) + Text("░" * (size - filled), _DIM)


def _jobs(view: TopView, frame: Frame, width: int, height: int) -> list[Text]:
    shown = view.shown(frame)
    order = f"sorted by {view.sort}{', reversed' if view.is_reversed else ''}"
    matching = f", matching {view.filter!r}" if view.filter else ""
    rows = [Text(printable(f"{len(shown):,} of {len(frame.jobs):,} jobs{matching}, {order}"), _DIM)]
    rows.append(_titles(_JOB_COLUMNS, width))
    room = max(1, height - len(rows))
    chosen = view.chosen(frame)
    at = next((row for row, job in enumerate(shown) if chosen is not None and job.job == chosen.job), 0)
    first = max(0, min(at - room // 2, len(shown) - room))
    visible = shown[first : first + room]
    for row, line in enumerate(_rows(_JOB_COLUMNS, visible, width), first):
        if row == at:
            line.stylize(_CHOSEN)
        rows.append(line)
    return rows


def _page(view: TopView, frame: Frame, width: int) -> list[Text]:
    from textwrap import wrap

    job = view.chosen(frame)
    if job is None:
        return [Text("no job is selected")]
    title = Text(printable(f"{view.page}: job {job.job} ({job.name})"), _BOLD)
    if frame.page_of != job.job:
        return [title, Text("requested ...")]
    if view.page == "logs":
        return [title, *(Text(printable(line)) for line in frame.page or ["no output yet"])]
    text = [] if frame.detail is None else explanation(frame.detail)
    return [title, *(Text(part) for line in text for part in wrap(printable(line), width, subsequent_indent="  "))]


def _scrolled(found: list[Text], top: int, height: int) -> list[Text]:
    """The title and the lines from `top` on; the last screenful if there are fewer."""
    last = max(0, len(found) - height)
    return [found[0], *found[1 + min(top, last) :]] if found else found


@dataclass(frozen=True)
class _Column:
    """A column; a narrow screen drops the highest ranks. `grows`: takes the remaining width."""

    title: str
    size: int
    rank: int
    cell: Callable[[Any], str | Text] = field(repr=False)  # Any: a job or a node
    is_right: bool = False
    grows: bool = False


def _state(job: client_pb2.Job) -> str:
    from gavelpy.runtime.wire import client_pb2

    return enum_name(client_pb2.JobState, job.state)


def _coloured_state(job: client_pb2.Job) -> Text:
    state = _state(job)
    return Text(state, _STATE_STYLES.get(state, Style()))


def _progress(job: client_pb2.Job) -> float:
    return job.steps_done / job.steps_total if job.steps_total > 0 and not job.total_open else 0.0


def _done(job: client_pb2.Job) -> Text:
    figure = compact(job.steps_done) if job.total_open else f"{100 * _progress(job):.0f} %"
    text = f" {'~' if job.steps_estimated else ''}{figure}"
    return bar(_progress(job), _BAR) + Text(f"{text:>7}")


def _searched(job: client_pb2.Job) -> str:
    return " ".join((str(job.job), job.name, job.owner, _state(job), job.gpu_type, *job.node_ids, job.reason)).lower()


_ORDER: Final[dict[str, Callable[[client_pb2.Job], tuple[float | str, int]]]] = {
    "state": lambda job: (float(job.lease < 0), job.job),
    "job": lambda job: (job.job, job.job),
    "name": lambda job: (job.name, job.job),
    "progress": lambda job: (-_progress(job), job.job),
    "rate": lambda job: (-job.rate_steps_per_s, job.job),
    "owner": lambda job: (job.owner, job.job),
}
_JOB_COLUMNS: Final = (
    _Column("job", 6, 0, lambda job: str(job.job), is_right=True),
    _Column("name", 14, 0, lambda job: job.name, grows=True),
    _Column("owner", 10, 6, lambda job: job.owner),
    _Column("state", 9, 0, _coloured_state),
    _Column("GPUs", 4, 1, lambda job: f"{job.gpus}*" if job.sizes else str(job.gpus), is_right=True),
    _Column("done", _BAR + 7, 0, _done),
    _Column("on", 16, 3, lambda job: f"{job.gpu_type} {', '.join(job.node_ids)}".strip() or DASH),
    _Column("steps/s", 9, 4, lambda job: compact(job.rate_steps_per_s) if job.rate_steps_per_s > 0 else DASH, True),
    _Column("steps", 13, 7, lambda job: "?" if job.total_open else count(job.steps_total), is_right=True),
    _Column("why", 30, 5, lambda job: job.reason or (job.detail if job.lease < 0 else ""), grows=True),
)
_NODE_COLUMNS: Final = (
    _Column("node", 12, 0, lambda node: node.node_id, grows=True),
    _Column("state", 11, 0, lambda node: node.state),
    _Column("type", 8, 1, lambda node: node.gpu_type),
    _Column(
        "GPUs", 18, 0, lambda n: bar(n.gpus_in_use / max(n.gpu_count, 1), _BAR) + f" {n.gpus_in_use}/{n.gpu_count}"
    ),
    _Column("last report", 11, 3, lambda node: duration(node.heartbeat_age_s), is_right=True),
    _Column("jobs", 14, 2, lambda node: ", ".join(map(str, node.jobs)) or DASH),
    _Column("address", 16, 5, lambda node: node.address),
    _Column("remarks", 24, 4, lambda node: node.detail, grows=True),
)


def _fitting(columns: Sequence[_Column], width: int) -> list[tuple[_Column, int]]:
    """The columns of the lowest ranks that fit, with their sizes; those that grow share the rest."""
    kept: list[_Column] = []
    left = width + 2
    for column in sorted(columns, key=lambda column: column.rank):
        if kept and left < column.size + 2:
            break
        kept.append(column)
        left -= column.size + 2
    growing = [column for column in kept if column.grows]
    extra = max(left, 0) // max(len(growing), 1)
    return [(column, column.size + (extra if column.grows else 0)) for column in columns if column in kept]


def _titles(columns: Sequence[_Column], width: int) -> Text:
    cells = [f"{c.title:>{size}}" if c.is_right else f"{c.title:<{size}}" for c, size in _fitting(columns, width)]
    return Text("  ".join(cells), _HEAD)


def _rows(
    columns: Sequence[_Column], found: Sequence[client_pb2.Job] | Sequence[client_pb2.NodeStatus], width: int
) -> list[Text]:
    fitting = _fitting(columns, width)
    rows = []
    for entry in found:
        cells = []
        for column, size in fitting:
            value = column.cell(entry)
            cell = value if isinstance(value, Text) else Text(printable(value))
            cell.truncate(size, overflow="ellipsis")
            cell.align("right" if column.is_right else "left", size)
            cells.append(cell)
        rows.append(Text("  ").join(cells))
    return rows
