"""Where answers come from: the protocol, Hugging Face, towers, encoders (extra ``torch``)."""
