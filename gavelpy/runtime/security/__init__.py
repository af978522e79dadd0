"""Authentication and authorisation of calls: tokens with roles, TLS, limits.

identity        operations and roles; the caller of a call, found by its token; the exception that refuses a call
interceptor     checks the token of every call and open stream
budgets         limits concurrent calls and streams
well_formed     answers malformed messages and errors of handlers with a status
tokens          the tokens file
certificates    a private authority, and the certificates that it signs
exposure        which addresses need TLS and tokens; TLS credentials of the server
"""
