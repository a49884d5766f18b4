"""What a run leaves behind, how it is found again, and how it is resumed."""
