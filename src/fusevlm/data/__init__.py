"""Queries and references in: tables, VQA, captions, hub, embedded scenes; is an answer right?"""
