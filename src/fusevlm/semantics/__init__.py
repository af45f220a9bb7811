"""Which samples mean the same: by strings, inference, sentences; questions asked otherwise."""
