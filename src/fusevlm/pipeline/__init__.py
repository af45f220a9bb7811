"""The pipeline: data → sample → embed → adapter → score → calibrate → evaluate → report."""
