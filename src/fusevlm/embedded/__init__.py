"""The embedded default: small real models that need no hub, their data and their training."""
