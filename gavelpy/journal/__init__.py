"""The journal: events to bytes and back, the scheduler's event store, and histories computed from events.

- `codec`: one event as a record (MessagePack), in every version that was ever written; snapshots.
- `file`: a journal in one file, as simulations write it.
- `history`: jobs and GPUs over time, computed from events: starts, ends, preemptions, GPU time, costs.

The event store of the scheduler, in the order in which a start uses it:

- `store`: `open_store` and `EventStore`: load, append, snapshots, submissions, backups.
- `database`: what the store requires of a database, and PostgreSQL; `sqlite`: lock, verification, backups, repair.
- `repair`: checks all rows at the start, sets damaged rows aside, collects good rows from damaged files and backups.
- `loss_detection`: marks outside the journal, which show that acknowledged events are lost.
- `tables`: rows with checksums, the chain of events, the layout; `migrations`: from older layouts to this one.

docs/journal.md describes the store for operators, docs/decisions/0014 and 0028 its design.
"""
