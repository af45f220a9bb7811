"""Models that answer queries, and the towers and encoders beside them (extra ``torch``)."""
