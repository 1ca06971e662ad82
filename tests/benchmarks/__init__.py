"""What `make bench` runs: the job beside its peers, side by side in one run on one simulated log.

    input       the log, its spec and model, made once for given settings and kept
    contenders  what is measured, each by its name; `contender` runs one in a process of its own
    flink_jobs  the contenders that are Flink jobs: pass-through, packed, per event
    in_process  the contenders without an engine: the transition, the replay, a bare loop
    per_event   the step that both per-event peers take
    report      medians, ratios, the bars, the tables and bench.json

No contender is measured in the process that measures: each repetition starts a process, which
warms nothing for the next, and ends it with all that it started.
"""
