"""The command line: `gavel`. Data on stdout, messages on stderr, exit codes as documented in docs/cli.md."""
