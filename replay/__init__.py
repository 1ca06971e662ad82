"""Recorded and training-side histories through the very transition that the job runs.

Here a log is driven in-process, without Flink; what comes out is what the job would have written.
"""
