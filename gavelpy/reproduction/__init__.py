"""Published figures, repeated: each prints the published values next to ours, and draws them."""
