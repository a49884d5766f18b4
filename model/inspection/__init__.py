"""How the network is looked at: recorded attention maps, head scores, pictures and pages."""
