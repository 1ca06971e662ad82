"""What runs: the Flink scoring job with its sources and sinks, the simulator, the command line.

Everything here may touch the outside: files, clocks, Flink. It decides nothing about records; that
is the transition in `operators`, which imports none of this.
"""
