"""Trains the embedded models, from a clone: ``make embedded``. Not part of the wheel.

models     their shapes, tokenizer and files
packing    batches and losses
recipes    what each of them is taught
optimise   the training loop
measure    what they can do afterwards
train      all of it, in order: ``python -m factory.train --out DIR --seed S``
card       the figures as Markdown: ``python -m factory.card DIR …``
"""
