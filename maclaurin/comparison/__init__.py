"""What `maclaurin compare` asks beside the loss: how much a mechanism recalls, what it costs, and the answers in words."""
