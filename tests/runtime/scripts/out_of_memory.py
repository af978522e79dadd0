"""Allocates more memory than its limit permits."""

import resource

print("began", flush=True)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
print(len(bytearray(1 << 32)), flush=True)
