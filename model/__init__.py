"""The network: torch only."""
