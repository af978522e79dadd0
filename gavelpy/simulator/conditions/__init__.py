"""What makes a simulated cluster cost time: costs of leases, failures, slow nodes and delays, each a switch."""
