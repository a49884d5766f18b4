"""What heads do, as numbers: recorded attention maps, scores, lens, attribution and ablation."""
