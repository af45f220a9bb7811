"""Parts made by the workers of a Ray cluster, on one machine or many (extra ``distributed``).

The command itself never loads Ray. It starts a process that does (:mod:`.driver`), so that a
cluster that goes away takes that process with it, and not the command, which then says what to do.
"""
