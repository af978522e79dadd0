"""Questions of people about the scheduler."""
