"""Who may call what: tokens with roles, TLS, and what a scheduler refuses to expose."""
