"""The pure core: one transition from (shard state, batch of records) to (shard state, outputs).

Time, watermark and randomness are passed in or derived from the log; nothing here asks a clock, a
network or an engine. Read in this order: `decode` (bytes to columns), `policy` (who is late, what
becomes of it), `state` (what is kept), `features`, `model`, `advance` (events to steps), `scorer`
(the transition), `codec` (state to bytes and back).
"""
