"""The pure core: one transition from (shard state, batch of records) to (shard state, outputs).

Time, watermark and randomness are passed in or derived from the log; nothing here asks a clock, a
network or an engine. A batch goes through these, in this order:

    scorer      the transition, put together from the parts below
    admit       steps 1 to 7: schema (decode, json_reading), key, partition, times, watermark
    plan        events to operations on keys: who waits, who is released, what needs a closer look
    advance     operations to steps: newest events in waves, insertions and doubts one for each key
    stepper     rows to features (features), outputs and next states (model)
    emit        results to records; rejects likewise
    persist     what changed, to bytes (codec) for the engine's state, and back

What a shard keeps is in `state` (with columnar, held, known_ids); every rule about time is in
`policy`.
"""
