"""How the network learns: the LightningModule, its optimizer, schedule, sharding, and the hardware it uses."""
