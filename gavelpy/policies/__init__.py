"""Policies: one file each, a frozen dataclass with the method `allocate`, registered by entry point."""
