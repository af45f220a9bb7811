"""Stages: data → sample → embed → adapter → semantics → score → calibrate → evaluate → report."""
