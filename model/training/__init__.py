"""How the network learns: the LightningModule, its optimizer, schedule, callbacks and loggers."""
