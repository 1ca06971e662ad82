"""What runs: the Flink scoring job with its sources and sinks, the simulator, the command line.

Everything here may touch the outside: files, clocks, processes, Flink. It decides nothing about
records; that is the transition in `operators`, which imports none of this.

    cli                    the command; each of its commands calls one of the next
      check                what a spec and its model would do, as tables
      simulate             a recorded log of any size (simulate_records: its JSON)
      run                  a recorded log through the embedded Flink job, in the order below
    exits, progress        how a command ends, and what it says meanwhile
    report                 run.json, and the summary of it

    run
      log_files            the recorded log becomes one file for each partition
      java                 finds what runs Flink
      flink_process        starts Flink in a process of its own and gives it jobs
      flink_main           that process; what it says of a failure is cut by flink_failure
        flink_settings     every setting that is not Flink's own, with its reason
        pipeline           the job, read as its diagram: source, pack, key_by, score, unnest, sinks
          pack             records become one packed row for each partition
          shard_keys       the Flink key of each partition, spread evenly over subtasks
          operator         score: a shard's state between Flink and the transition
          uids             a stable uid for every operator, by which state is found again
"""
