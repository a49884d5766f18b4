"""How the network learns: the LightningModule, its optimizer and schedule, and what the hardware can do."""
