"""How the network learns: the LightningModule, its optimizer, schedule, and the hardware it uses."""
