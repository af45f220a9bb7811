"""The contract suite that any model can be run through, and tiny random models to try things on."""
