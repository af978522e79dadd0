"""Authentication and authorisation of calls: tokens with roles, TLS, limits."""
