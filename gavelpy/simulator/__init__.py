"""The first shell: the core in virtual time, over a virtual cluster."""
